"""A page of the newest rollouts that were sampled and scored: asked of the queue, read from the log, decoded.

Rows that the run has let go are left out; what one page holds is bounded by the queue
(`streamrl.buffers.index.groups.recent`).
"""

from typing import Any

import numpy as np
from ray.actor import ActorHandle

from streamrl.buffers.index.groups.recent import RecentGroup, RecentRow
from streamrl.buffers.rows.shown_rows import ShownRow
from streamrl.config import Config
from streamrl.gateway.page.samples import cursor_of, group_advantages, place_of
from streamrl.models.tokenizer import TextTokenizer
from streamrl.services.gateway.training.queue import answer_of_queue
from streamrl.services.gateway.training.rows import GatewayRows
from streamrl.types import Version

MOST = 200
"""Rows of one page."""


class SampleService:
    """See the module.

    Example:
        page = await service.page(limit=50, before="")
        older = await service.page(limit=50, before=page["next"])
    """

    def __init__(self, queue: ActorHandle, rows: GatewayRows, tokenizer: TextTokenizer, config: Config) -> None:
        self._queue = queue
        self._rows = rows
        self._tokenizer = tokenizer
        self._config = config

    async def page(self, limit: int, before: str) -> dict[str, Any]:
        """`samples`, the newest group first, and `next`, None behind the last. before: what `next` of the page before
        said, "" for the newest. Raises Refusal."""
        place = place_of(before) if before else None
        groups, following = await answer_of_queue(self._queue.recent.remote(place, limit))
        wanted = [row for group in groups for row in group.rows[group.start : group.end]]
        shown = await self._rows.shown([(row.frame, row.row) for row in wanted], self._with_texts)
        samples = [sample for group in groups for sample in self._samples(group, shown)]
        return {"samples": samples, "next": None if following is None else cursor_of(*following)}

    def _with_texts(self, shown: ShownRow) -> dict[str, Any]:
        """What a row says by itself. Called in the thread that reads."""
        sampled = np.array(shown.ids, np.int32)[np.array(shown.sampled, np.bool_)]
        unique, inverse = np.unique(np.array(shown.ids, np.int32), return_inverse=True)
        texts = self._tokenizer.decode_batch(unique, np.arange(len(unique) + 1, dtype=np.int64))
        return {
            "stream": shown.stream,
            "version_spans": [[start, str(Version(incarnation, step))] for start, incarnation, step in shown.spans],
            "prompt": self._tokenizer.decode(np.array(shown.prompt_ids, np.int32)),
            "completion": self._tokenizer.decode(sampled),
            "token_ids": shown.ids,
            "tokens": [texts[place] for place in inverse.tolist()],
            "logprobs": shown.logprobs,
            "finish_reason": shown.finish_reason,
        }

    def _samples(self, group: RecentGroup, told: dict[tuple[Any, int], dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows of a group that are on the page and could be read."""
        rewards, tokens = [row.reward for row in group.rows], [row.sampled_tokens for row in group.rows]
        advantages = group_advantages(rewards, tokens, self._config)
        pairs = list(zip(group.rows, advantages, strict=True))[group.start : group.end]
        return [
            {**_named(group, row), **told[row.frame, row.row], "advantage": advantage, "reward": row.reward}
            for row, advantage in pairs
            if (row.frame, row.row) in told
        ]


def _named(group: RecentGroup, row: RecentRow) -> dict[str, Any]:
    return {"group": group.number, "sample": row.sample_index, "branch": row.branch, "step": group.step}
