"""Greedy answers to fixed prompts, under one version of the weights.

Guarantees that every answer was sampled under the version that was asked for (anything else is an error, not
a score), that prompts and seeds are those of every other evaluation, and that no training seed is touched. It
does not score: it hands out reward items, and `mean_score` sums up what came back. It waits for nothing:
`step` lets a replica go on with its stream in between, on an engine that both may share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamrl.engines.base import Engine
from streamrl.errors import ComponentError
from streamrl.models.tokenizer import TextTokenizer
from streamrl.rewards.base import RewardItem
from streamrl.tasks.base import Prompt, Task
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    Score,
    ScoreStatus,
    Version,
    rollout_seed,
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one version answered.

    items: in the order of the prompts, those without an answer left out. errors: what the engine said about
    those."""

    version: Version
    items: list[RewardItem]
    errors: list[str]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class EvalScore:
    """mean: over the scores that are numbers; None when there is none. num_failed: what is not in the
    mean."""

    mean: float | None
    num_scored: int
    num_failed: int


def held_out_prompts(task: Task, max_items: int = 0) -> list[Prompt]:
    """The first `max_items` held-out prompts of `task`; all of them for 0."""
    count = min(max_items, task.num_held_out) if max_items else task.num_held_out
    return [task.held_out(index) for index in range(count)]


def mean_score(scores: Sequence[Score], num_errors: int = 0) -> EvalScore:
    """The mean of the scores that are numbers. Failed ones, and `num_errors` prompts without an answer, are
    counted and do not enter it."""
    rewards = [score.reward for score in scores if score.status is ScoreStatus.OK and score.reward is not None]
    mean = math.fsum(rewards) / len(rewards) if rewards else None
    return EvalScore(mean, len(rewards), len(scores) - len(rewards) + num_errors)


class Evaluator:
    """Greedy completions of `prompts`, one version at a time.

    Example:
        evaluator.start(engine.version)
        while not evaluator.done:
            finished = evaluator.step()     # requests of others that ended in the same step
        evaluation = evaluator.result()
    """

    def __init__(
        self, engine: Engine, prompts: Sequence[Prompt], tokenizer: TextTokenizer, *, max_new_tokens: int
    ) -> None:
        self._engine = engine
        self._prompts = list(prompts)
        self._tokenizer = tokenizer
        self._prompt_ids = tokenizer.encode_batch([prompt.text for prompt in prompts])
        self._sampling = SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens)
        self._version: Version | None = None
        self._waiting: dict[str, int] = {}
        self._results: dict[int, GenerationResult] = {}

    @property
    def done(self) -> bool:
        """Whether nothing is under way: every answer is there, or nothing was started."""
        return not self._waiting

    def start(self, version: Version) -> None:
        """Submit all prompts. Raises ComponentError when an evaluation is under way, or the engine is at
        another version."""
        if not self.done:
            raise ComponentError(
                f"evaluation of {version}: that of {self._version} waits for {len(self._waiting)} answers"
            )
        if self._engine.version != version:
            raise ComponentError(f"evaluation of {version}: the engine is at {self._engine.version}")
        requests = [self._request(index, version) for index in range(len(self._prompts))]
        self._version, self._results = version, {}
        self._waiting = {request.request_id: index for index, request in enumerate(requests)}
        self._engine.submit(requests)

    def step(self) -> list[GenerationResult]:
        """Step the engine once; return what finished and is not ours."""
        return self.collect(self._engine.step())

    def collect(self, results: Sequence[GenerationResult]) -> list[GenerationResult]:
        """Take the answers out of what an engine's step returned; return the rest.

        Raises ComponentError for an answer that was not sampled under the evaluated version alone.
        """
        others = []
        for result in results:
            index = self._waiting.pop(result.request_id, None)
            if index is None:
                others.append(result)
                continue
            self._check_version(result)
            self._results[index] = result
        return others

    def cancel(self) -> None:
        """Give the evaluation up: its requests are aborted, and `collect` will pass their ends on."""
        waiting, self._waiting = list(self._waiting), {}
        self._version, self._results = None, {}
        self._engine.abort(waiting)

    def result(self) -> Evaluation:
        """The answers, once `done`. Raises ComponentError before that, or when nothing was started."""
        if self._version is None or self._waiting:
            raise ComponentError(f"the evaluation has no result yet: {len(self._waiting)} answers are missing")
        answered, errors = [], []
        for index in range(len(self._prompts)):
            result = self._results[index]
            if result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                answered.append(index)
            else:
                errors.append(f"{self._prompts[index].prompt_id}: {result.error or result.finish_reason}")
        num_tokens = sum(len(self._results[index].token_ids) for index in answered)
        return Evaluation(self._version, self._items(answered), errors, num_tokens)

    def run(self, version: Version) -> Evaluation:
        """`start`, every `step`, and `result`, on an engine that serves nobody else meanwhile."""
        self.start(version)
        while not self.done:
            self.step()
        return self.result()

    def _request(self, index: int, version: Version) -> GenerationRequest:
        prompt = self._prompts[index]
        return GenerationRequest(
            request_id=f"eval/{version}/{index}",
            prompt_ids=self._prompt_ids[index],
            seed=rollout_seed(0, f"eval/{prompt.prompt_id}"),
            sampling=self._sampling,
            stop_token_ids=self._tokenizer.eos_token_ids,
        )

    def _check_version(self, result: GenerationResult) -> None:
        strange = {span.version for span in result.version_spans} - {self._version}
        if strange:
            raise ComponentError(
                f"evaluation of {self._version}: {result.request_id} has tokens of "
                f"{', '.join(map(str, sorted(strange)))}; the version must stay pinned while it runs"
            )

    def _items(self, indices: list[int]) -> list[RewardItem]:
        rows = [self._results[index] for index in indices]
        if not rows:
            return []
        offsets = np.concatenate(([0], np.cumsum([len(row.token_ids) for row in rows], dtype=np.int64)))
        texts = self._tokenizer.decode_batch(np.concatenate([row.token_ids for row in rows]), offsets)
        return [
            RewardItem(
                completion=text,
                prompt=self._prompts[index].text,
                payload=self._prompts[index].payload,
                finish_reason=row.finish_reason.value,
                token_ids=row.token_ids.astype("<i4").tobytes(),
                prompt_ids=self._prompt_ids[index].astype("<i4").tobytes(),
            )
            for index, row, text in zip(indices, rows, texts, strict=True)
        ]
