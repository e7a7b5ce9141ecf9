"""Held-out prompts played as episodes, greedy or several of each, under one version of the weights.

As `streamrl.evaluation.Evaluator`, whose prompts, seeds and promises these are: every answer was sampled under the
version that was asked for, and no training seed is touched.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from streamrl.environments.episode import Rollout
from streamrl.environments.play import EndedEpisode, Generate, Player, row_of
from streamrl.errors import ComponentError
from streamrl.evaluation import Evaluation
from streamrl.models.tokenizer import TextTokenizer
from streamrl.rewards.base import RewardItem
from streamrl.tasks.base import Prompt
from streamrl.tasks.prompts import prompt_ids
from streamrl.types import EvalSampling, GenerationRequest, GenerationResult, SamplingParams, Version


class EpisodeEvaluator:
    """Plays `prompts`, one version at a time. sets: how many of the prompts each named set has, in their order.

    Example:
        evaluation = await evaluator.play(version, generate)
    """

    def __init__(
        self,
        player: Player,
        prompts: Sequence[Prompt],
        tokenizer: TextTokenizer,
        *,
        max_new_tokens: int,
        samples: int = 1,
        temperature: float = 0.0,
        sets: Mapping[str, int] | None = None,
    ) -> None:
        self._player = player
        self._prompts = list(prompts)
        self._ids = [prompt_ids(prompt, tokenizer) for prompt in prompts]
        self._stop_ids = tokenizer.eos_token_ids
        self._max_new_tokens = max_new_tokens
        self._usual = self._own = EvalSampling(samples, temperature)
        self._sets = dict(sets or {})

    async def play(self, version: Version, generate: Generate, sampling: EvalSampling | None = None) -> Evaluation:
        """All of them beside each other. sampling: of this evaluation, in the place of the evaluator's own. Raises
        ComponentError for an answer that was not sampled under the evaluated version alone."""
        self._own = sampling or self._usual

        async def pinned(request: GenerationRequest) -> GenerationResult:
            result = await generate(request)
            strange = {span.version for span in result.version_spans} - {version}
            if strange:
                raise ComponentError(
                    f"evaluation of {version}: {request.request_id} has tokens of "
                    f"{', '.join(map(str, sorted(strange)))}; the version must stay pinned while it runs"
                )
            return result

        places = range(len(self._prompts) * self._own.samples)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._player.play(self._rollout(place), pinned)) for place in places]
        return self._evaluation(version, [task.result() for task in tasks])

    def _evaluation(self, version: Version, episodes: Sequence[EndedEpisode]) -> Evaluation:
        answered = [place for place, episode in enumerate(episodes) if episode.record is not None]
        errors = [
            f"{self._prompts[place // self._own.samples].prompt_id}: {episode.error or episode.finish_reason}"
            for place, episode in enumerate(episodes)
            if episode.record is None
        ]
        branches = [branch for place in answered for branch in episodes[place].branches]
        return Evaluation(
            version,
            [self._item(place, episodes[place]) for place in answered],
            errors,
            sum(len(turn.token_ids) for branch in branches for turn in branch.turns),
            [place // self._own.samples for place in answered],
            self._sets,
            self._own.samples,
        )

    def _item(self, place: int, episode: EndedEpisode) -> RewardItem:
        prompt = self._prompts[place // self._own.samples]
        assert episode.record is not None
        first, *_ = turns = episode.branches[-1].turns
        return RewardItem(
            completion=episode.record.final,
            prompt=prompt.text,
            payload=episode.payload(prompt.payload),
            finish_reason=episode.finish_reason.value,
            token_ids=_id_bytes(token for turn in turns for token in turn.token_ids),
            prompt_ids=_id_bytes(first.prompt_ids),
        )

    def _rollout(self, place: int) -> Rollout:
        """place: prompt by prompt, the samples of each together."""
        index, sample = divmod(place, self._own.samples)
        prompt = self._prompts[index]
        # The seeds follow from the name, which is the same for every version.
        name = f"eval/{prompt.prompt_id}/{sample}"
        drawn = SamplingParams(temperature=self._own.temperature, max_new_tokens=self._max_new_tokens)
        request = GenerationRequest(name, self._ids[index], 0, drawn, self._stop_ids)
        return Rollout(request, prompt.text, row_of(prompt.payload, prompt.text), 0)


def _id_bytes(ids: Iterable[int]) -> bytes:
    """As `RewardItem` has them."""
    return np.fromiter(ids, "<i4").tobytes()
