"""Answers to fixed prompts, greedy or several of each, under one version of the weights, and what they score.

Guarantees that every answer was sampled under the version that was asked for (anything else is an error, not
a score), that prompts and seeds are those of every other evaluation, and that no training seed is touched. It
does not score: it hands out reward items, and `mean_score` sums up what came back. It waits for nothing:
`step` lets a replica go on with its stream in between, on an engine that both may share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from streamrl.engines.base import Engine
from streamrl.errors import ComponentError
from streamrl.ids import rollout_seed
from streamrl.models.tokenizer import TextTokenizer
from streamrl.rewards.base import RewardItem
from streamrl.tasks.base import Prompt, Task
from streamrl.tasks.prompts import prompt_ids
from streamrl.types import (
    EvalSampling,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
    Score,
    ScoreStatus,
    Version,
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one version answered.

    items: in the order of the prompts, those without an answer left out. errors: what the engine said about
    those. prompts: number of the prompt of each item. sets: how many prompts each named set has, in their order."""

    version: Version
    items: list[RewardItem]
    errors: list[str]
    num_tokens: int
    prompts: list[int] = field(default_factory=list)
    sets: dict[str, int] = field(default_factory=dict)
    samples: int = 1


@dataclass(frozen=True, slots=True)
class EvalScore:
    """mean: over the scores that are numbers; None when there is none. num_failed: what is not in the
    mean. parts: what else is told, by the name of its metric below `eval/`."""

    mean: float | None
    num_scored: int
    num_failed: int
    parts: dict[str, float] = field(default_factory=dict)


def held_out_prompts(task: Task, max_items: int = 0) -> list[Prompt]:
    """The first `max_items` held-out prompts of each set of `task`; all of them for 0."""
    prompts, first = [], 0
    for name, count in held_out_sets(task).items():
        prompts += [task.held_out(first + index) for index in range(held_out_sets(task, max_items)[name])]
        first += count
    return prompts


def held_out_sets(task: Task, max_items: int = 0) -> dict[str, int]:
    """How many prompts of each named set `held_out_prompts` gives, in their order. A task without names has one set."""
    sets: dict[str, int] = getattr(task, "held_out_sets", {"": task.num_held_out})
    return {name: min(max_items, count) if max_items else count for name, count in sets.items()}


def mean_score(scores: Sequence[Score], num_errors: int = 0) -> EvalScore:
    """The mean of the scores that are numbers. Failed ones, and `num_errors` prompts without an answer, are
    counted and do not enter it."""
    rewards = [score.reward for score in scores if score.status is ScoreStatus.OK and score.reward is not None]
    mean = math.fsum(rewards) / len(rewards) if rewards else None
    return EvalScore(mean, len(rewards), len(scores) - len(rewards) + num_errors)


def evaluation_score(evaluation: Evaluation, scores: Sequence[Score]) -> EvalScore:
    """What the answers of an evaluation came to. scores: of its items.

    Beside the mean over all, `parts` has `NAME/score` of each of several sets, and where a prompt has k samples
    `avg@k`, the mean over prompts of their mean score, and `pass@k`, the mean over prompts of their best score: with
    rewards of 0 and 1 the share of prompts that one of k samples solves (Chen et al. 2021, with n = k). A sample
    without a score is in neither."""
    whole = mean_score(scores, len(evaluation.errors))
    parts: dict[str, float] = {}
    by_prompt: dict[int, list[float]] = {}
    for place, score in zip(evaluation.prompts, scores, strict=False):
        if score.status is ScoreStatus.OK and score.reward is not None:
            by_prompt.setdefault(place, []).append(score.reward)
    if evaluation.samples > 1:
        parts |= _of_samples("", evaluation.samples, list(by_prompt.values()))
    first = 0
    for name, count in evaluation.sets.items() if len(evaluation.sets) > 1 else ():
        own = [by_prompt[place] for place in range(first, first + count) if place in by_prompt]
        first += count
        if own:
            rewards = [reward for group in own for reward in group]
            parts[f"{name}/score"] = math.fsum(rewards) / len(rewards)
            parts |= _of_samples(f"{name}/", evaluation.samples, own) if evaluation.samples > 1 else {}
    return replace(whole, parts=parts)


def _of_samples(prefix: str, samples: int, groups: Sequence[Sequence[float]]) -> dict[str, float]:
    """groups: the rewards of each prompt."""
    if not groups:
        return {}
    means = math.fsum(math.fsum(group) / len(group) for group in groups) / len(groups)
    best = math.fsum(max(group) for group in groups) / len(groups)
    return {f"{prefix}avg@{samples}": means, f"{prefix}pass@{samples}": best}


class Evaluator:
    """Completions of `prompts`, one version at a time: greedy, or `samples` of each at a temperature.

    Example:
        evaluator.start(engine.version)
        while not evaluator.done:
            finished = evaluator.step()     # requests of others that ended in the same step
        evaluation = evaluator.result()
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Prompt],
        tokenizer: TextTokenizer,
        *,
        max_new_tokens: int,
        samples: int = 1,
        temperature: float = 0.0,
        sets: Mapping[str, int] | None = None,
    ) -> None:
        """sets: how many of the prompts each named set has, in their order."""
        self._engine = engine
        self._prompts = list(prompts)
        self._tokenizer = tokenizer
        self._prompt_ids = [prompt_ids(prompt, tokenizer) for prompt in prompts]
        self._max_new_tokens = max_new_tokens
        self._usual = self._own = EvalSampling(samples, temperature)
        self._sets = dict(sets or {})
        self._version: Version | None = None
        self._waiting: dict[str, int] = {}
        self._results: dict[int, GenerationResult] = {}

    @property
    def done(self) -> bool:
        """Whether nothing is under way: every answer is there, or nothing was started."""
        return not self._waiting

    def start(self, version: Version, sampling: EvalSampling | None = None) -> None:
        """Submit all prompts. sampling: of this evaluation, in the place of the evaluator's own. Raises ComponentError
        when an evaluation is under way, or the engine is at another version."""
        if not self.done:
            raise ComponentError(
                f"evaluation of {version}: that of {self._version} waits for {len(self._waiting)} answers"
            )
        if self._engine.version != version:
            raise ComponentError(f"evaluation of {version}: the engine is at {self._engine.version}")
        self._own = sampling or self._usual
        requests = [self._request(place, version) for place in range(len(self._prompts) * self._own.samples)]
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
        for place in range(len(self._prompts) * self._own.samples):
            result = self._results[place]
            if result.finish_reason in (FinishReason.STOP, FinishReason.LENGTH):
                answered.append(place)
            else:
                prompt = self._prompts[place // self._own.samples]
                errors.append(f"{prompt.prompt_id}: {result.error or result.finish_reason}")
        num_tokens = sum(len(self._results[place].token_ids) for place in answered)
        prompts = [place // self._own.samples for place in answered]
        items = self._items(answered)
        return Evaluation(self._version, items, errors, num_tokens, prompts, self._sets, self._own.samples)

    def run(self, version: Version) -> Evaluation:
        """`start`, every `step`, and `result`, on an engine that serves nobody else meanwhile."""
        self.start(version)
        while not self.done:
            self.step()
        return self.result()

    def _request(self, place: int, version: Version) -> GenerationRequest:
        """place: prompt by prompt, the samples of each together."""
        index, sample = divmod(place, self._own.samples)
        name = f"eval/{self._prompts[index].prompt_id}"
        return GenerationRequest(
            request_id=f"eval/{version}/{place}",
            prompt_ids=self._prompt_ids[index],
            seed=rollout_seed(0, f"{name}/{sample}" if sample else name),
            sampling=SamplingParams(temperature=self._own.temperature, max_new_tokens=self._max_new_tokens),
            stop_token_ids=self._tokenizer.eos_token_ids,
        )

    def _check_version(self, result: GenerationResult) -> None:
        strange = {span.version for span in result.version_spans} - {self._version}
        if strange:
            raise ComponentError(
                f"evaluation of {self._version}: {result.request_id} has tokens of "
                f"{', '.join(map(str, sorted(strange)))}; the version must stay pinned while it runs"
            )

    def _items(self, places: list[int]) -> list[RewardItem]:
        rows = [self._results[place] for place in places]
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
            for index, row, text in zip([place // self._own.samples for place in places], rows, texts, strict=True)
        ]
