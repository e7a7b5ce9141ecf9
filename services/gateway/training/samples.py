"""A page of the newest rollouts that were sampled and scored: asked of the queue, read from the log, decoded, and laid
beside what the learner kept of their tokens.

Rows that the run has let go are left out; what one page holds is bounded by the queue
(`streamrl.buffers.index.groups.recent`).
"""

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ray.actor import ActorHandle

from streamrl.buffers.index.groups.recent import RecentGroup, RecentRow
from streamrl.buffers.rows.shown_rows import ShownRow
from streamrl.config import Config
from streamrl.gateway.page.oddities import oddities
from streamrl.gateway.page.overlays import overlay
from streamrl.gateway.page.samples import cursor_of, group_advantages, place_of
from streamrl.models.tokenizer import TextTokenizer
from streamrl.services.gateway.training.queue import answer_of_queue
from streamrl.services.gateway.training.rows import GatewayRows
from streamrl.services.inspect.token_lines import TokenLines
from streamrl.types import Version

MOST = 200
"""Rows of one page."""


class _Told(NamedTuple):
    """What a row says by itself: facts as they are told, and of each token whether it was sampled, and whether the
    learner predicts it."""

    facts: dict[str, Any]
    sampled: list[bool]
    targets: list[bool]


class SampleService:
    """See the module. tokens_folder: where the learner keeps what it found for single tokens.

    Example:
        page = await service.page(limit=50, before="")
        older = await service.page(limit=50, before=page["next"])
    """

    def __init__(
        self, queue: ActorHandle, rows: GatewayRows, tokenizer: TextTokenizer, config: Config, tokens_folder: Path
    ) -> None:
        self._queue = queue
        self._rows = rows
        self._tokenizer = tokenizer
        self._config = config
        self._lines = TokenLines(tokens_folder)
        self._one_by_one = asyncio.Lock()

    async def page(self, limit: int, before: str) -> dict[str, Any]:
        """`samples`, the newest group first, and `next`, None behind the last. before: what `next` of the page before
        said, "" for the newest. Raises Refusal."""
        place = place_of(before) if before else None
        groups, following = await answer_of_queue(self._queue.recent.remote(place, limit))
        wanted = [row for group in groups for row in group.rows[group.start : group.end]]
        shown = await self._rows.shown([(row.frame, row.row) for row in wanted], self._with_texts)
        async with self._one_by_one:
            samples = await asyncio.to_thread(self._all_samples, groups, shown)
        return {"samples": samples, "next": None if following is None else cursor_of(*following)}

    def close(self) -> None:
        self._lines.close()

    def _with_texts(self, shown: ShownRow) -> _Told:
        """What a row says by itself. Called in the thread that reads."""
        mask = np.array(shown.sampled, np.bool_)
        sampled = np.array(shown.ids, np.int32)[mask]
        unique, inverse = np.unique(np.array(shown.ids, np.int32), return_inverse=True)
        texts = self._tokenizer.decode_batch(unique, np.arange(len(unique) + 1, dtype=np.int64))
        completion = self._tokenizer.decode(sampled)
        logprobs = np.array(shown.logprobs, np.float64)[mask].tolist()
        facts = {
            "stream": shown.stream,
            "version_spans": [[start, str(Version(incarnation, step))] for start, incarnation, step in shown.spans],
            "prompt": self._tokenizer.decode(np.array(shown.prompt_ids, np.int32)),
            "completion": completion,
            "token_ids": shown.ids,
            "tokens": [texts[place] for place in inverse.tolist()],
            "logprobs": shown.logprobs,
            "finish_reason": shown.finish_reason,
            "replica": shown.replica,
            "oddities": oddities(sampled.tolist(), completion, logprobs),
        }
        # Nothing predicts the first token of a row.
        targets = [one and bool(place or shown.prompt_ids) for place, one in enumerate(shown.sampled)]
        return _Told(facts, shown.sampled, targets)

    def _all_samples(self, groups: list[RecentGroup], told: dict[tuple[Any, int], _Told]) -> list[dict[str, Any]]:
        """Called in a thread, once at a time."""
        self._lines.follow()
        return [sample for group in groups for sample in self._samples(group, told)]

    def _samples(self, group: RecentGroup, told: dict[tuple[Any, int], _Told]) -> list[dict[str, Any]]:
        """The rows of a group that are on the page and could be read."""
        rewards, tokens = [row.reward for row in group.rows], [row.sampled_tokens for row in group.rows]
        advantages = group_advantages(rewards, tokens, self._config)
        pairs = list(zip(group.rows, advantages, strict=True))[group.start : group.end]
        return [
            {
                **self._named(group, row),
                "advantage": advantage,
                **self._of_tokens(group.step, row, told[row.frame, row.row]),
            }
            for row, advantage in pairs
            if (row.frame, row.row) in told
        ]

    def _of_tokens(self, step: int | None, row: RecentRow, told: _Told) -> dict[str, Any]:
        """What is known of the tokens; `lacks` says why that is not all."""
        figures = None if step is None else self._lines.of_row(step, row.frame, row.row)
        if figures is not None and len(figures.logprobs) not in (0, sum(told.targets)):
            figures = None  # a file that another program wrote to
        known = overlay(told.sampled, told.targets, told.facts["logprobs"], figures)
        return {**told.facts, **known, "lacks": self._lack(step) if figures is None else None}

    def _lack(self, step: int | None) -> str:
        if step is None:
            return "not_trained"
        return "not_kept" if self._config.observe.token_bytes else "switched_off"

    def _named(self, group: RecentGroup, row: RecentRow) -> dict[str, Any]:
        names = self._config.learner.algorithm.component_names
        return {
            "group": group.number,
            "sample": row.sample_index,
            "branch": row.branch,
            "step": group.step,
            "reward": row.reward,
            "components": dict(zip(names, row.components, strict=False)),
        }
