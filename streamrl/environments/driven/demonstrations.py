"""Demonstrations as episodes: the task says what a perfect model would say, turn by turn, and the environment answers.

The rows of a warm-up, whose context is then the very one that rollouts have.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from streamrl.conversations.branches import Branch
from streamrl.environments.episode import Rollout
from streamrl.environments.play import EndedEpisode, Player, row_of
from streamrl.errors import ComponentError
from streamrl.models.tokenizer import TextTokenizer
from streamrl.tasks.base import DemonstratedTask, turns_of
from streamrl.tasks.prompts import prompt_ids
from streamrl.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    LongArray,
    RolloutRows,
    SamplingParams,
    TokenOrigin,
    Version,
    VersionSpan,
)

_NOBODY = Version(0, 0)
"""Stands for the version of what none sampled."""


class EpisodeDemonstrations:
    """The training items of a task as token rows, each played once. run: has a coroutine run to its end. most: tokens
    of one turn."""

    def __init__(
        self,
        player: Player,
        task: DemonstratedTask,
        tokenizer: TextTokenizer,
        most: int,
        run: Callable[[Coroutine[Any, Any, list[EndedEpisode]]], list[EndedEpisode]],
    ) -> None:
        self._player = player
        self._task = task
        self._tokenizer = tokenizer
        self._most = most
        self._run = run
        self._played: dict[int, Sequence[Branch]] = {}

    def rows(self, items: LongArray) -> RolloutRows:
        """The branches of each item's episode; each item is a group of its own, and log-probs are 0.

        Raises ComponentError for an item whose environment fails, or wants more turns than the task has."""
        missing = [item for item in dict.fromkeys(items.tolist()) if item not in self._played]
        for item, ended in zip(missing, self._run(self._play(missing)), strict=True):
            if ended.record is None:
                raise ComponentError(f"warm-up: the demonstration of training item {item} failed: {ended.error}")
            self._played[item] = ended.branches
        return _laid_out([self._played[item] for item in items.tolist()])

    async def _play(self, items: Sequence[int]) -> list[EndedEpisode]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._play_one(item)) for item in items]
        return [task.result() for task in tasks]

    async def _play_one(self, item: int) -> EndedEpisode:
        prompt = self._task.train(item)
        said = iter(turns_of(self._task.demonstration(prompt)))

        async def say(request: GenerationRequest) -> GenerationResult:
            text = next(said, None)
            if text is None:
                what = f"task {self._task.name!r} demonstrates fewer turns than its environment takes"
                return _result(request, np.empty(0, np.int32), FinishReason.ERROR, what)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
            ended = np.append(ids, self._tokenizer.eos_token_ids[0]).astype(np.int32)
            return _result(request, ended, FinishReason.STOP)

        sampling = SamplingParams(max_new_tokens=self._most)
        ids = prompt_ids(prompt, self._tokenizer)
        name = f"demonstration/{item}"
        request = GenerationRequest(name, ids, 0, sampling, self._tokenizer.eos_token_ids)
        rollout = Rollout(request, prompt.text, row_of(prompt.payload, prompt.text), 0)
        return await self._player.play(rollout, say)


def _result(
    request: GenerationRequest, ids: "np.ndarray[Any, np.dtype[np.int32]]", reason: FinishReason, error: str = ""
) -> GenerationResult:
    spans = (VersionSpan(0, _NOBODY),) if len(ids) else ()
    return GenerationResult(request.request_id, ids, np.zeros(len(ids), np.float32), spans, reason, error)


def _laid_out(episodes: Sequence[Sequence[Branch]]) -> RolloutRows:
    branches = list(chain.from_iterable(episodes))
    tokens = np.fromiter(chain.from_iterable(map(_ids, branches)), np.int32)
    lengths = np.array([branch.num_tokens for branch in branches], np.int64)
    group = np.repeat(np.arange(len(episodes)), [len(one) for one in episodes])
    return RolloutRows(
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
        token_ids=tokens,
        token_origin=np.fromiter(chain.from_iterable(map(_origins, branches)), np.uint8),
        rollout_logprobs=np.zeros(len(tokens), np.float32),
        token_steps=np.full(len(tokens), -1, np.int64),
        group=group,
        sample_index=np.zeros(len(branches), np.int64),
        rewards=np.zeros(len(branches)),
        valid=np.ones(len(branches), bool),
    )


def _ids(branch: Branch) -> Iterator[int]:
    return chain.from_iterable(chain(turn.prompt_ids, turn.token_ids) for turn in branch.turns)


def _origins(branch: Branch) -> Iterator[int]:
    for place, turn in enumerate(branch.turns):
        yield from [TokenOrigin.ENVIRONMENT if place else TokenOrigin.PROMPT] * len(turn.prompt_ids)
        yield from [TokenOrigin.SAMPLED] * len(turn.token_ids)
