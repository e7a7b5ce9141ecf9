"""Rows as the gateway tells them, those of groups that clients submitted and others: read from the log, decoded, beside
its loop."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from ray.actor import ActorHandle

from streamrl.buffers.index.submitted.submissions import Outcome, ScoredRow
from streamrl.buffers.rows.shown_rows import ShownRow, shown_rows
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import DataError
from streamrl.gateway.prompts.answers import Rollout
from streamrl.models.tokenizer import TextTokenizer
from streamrl.services.queue.far_rows import FarRows
from streamrl.types import FrameRef

T = TypeVar("T")
Told = dict[tuple[FrameRef, int], T]
READER = "gateway"


class GatewayRows:
    """See the module. home: as in `FarRows`. limit_s: for rows of other nodes to come."""

    def __init__(self, run_folder: Path, tokenizer: TextTokenizer, home: ActorHandle | None, limit_s: float) -> None:
        self._tokenizer = tokenizer
        self._reader = SegmentReader(run_folder)
        self._far = FarRows(READER, home, limit_s, leases=False)
        self._one_by_one = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gateway rows")

    async def of(self, outcome: Outcome) -> tuple[list[int], list[Rollout]] | None:
        """(ids of the prompt, rollouts) of a finished group; None when the run does not have its rows any more."""
        if not outcome.rows:
            return None
        async with self._one_by_one:  # what comes from other nodes stays until the next question
            if await self._far.lost({row.frame for row in outcome.rows}):
                return None
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, self._read, outcome.rows)

    async def shown(self, places: Sequence[tuple[FrameRef, int]], tell: Callable[[ShownRow], T]) -> Told[T]:
        """What `tell` says of the rows at these places, by place; it is called in the thread that reads. Those that the
        run does not have any more are left out."""
        async with self._one_by_one:
            lost = await self._far.lost({frame for frame, _ in places})
            here = [(frame, row) for frame, row in places if frame not in lost]
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._shown, here, tell)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _shown(self, places: Sequence[tuple[FrameRef, int]], tell: Callable[[ShownRow], T]) -> Told[T]:
        told = {}
        try:
            for frame, row in places:
                with suppress(DataError):  # retention has let the file go
                    told[frame, row] = tell(shown_rows(self._reader.read(frame), [row])[0])
        finally:
            self._reader.forget_copies()
        return told

    def _read(self, rows: list[ScoredRow]) -> tuple[list[int], list[Rollout]] | None:
        try:
            shown = [shown_rows(self._reader.read(row.frame), [row.row])[0] for row in rows]
        except DataError:
            return None  # retention has let the file go
        finally:
            self._reader.forget_copies()
        rollouts = [self._rollout(row, one) for row, one in zip(rows, shown, strict=True)]
        return shown[0].prompt_ids, rollouts

    def _rollout(self, row: ScoredRow, shown: ShownRow) -> Rollout:
        sampled = np.array(shown.ids, np.int32)[np.array(shown.sampled, np.bool_)]
        return Rollout(
            sample_index=row.sample_index,
            branch=row.branch,
            text=self._tokenizer.decode(sampled),
            ids=shown.ids,
            logprobs=shown.logprobs,
            spans=shown.spans,
            finish_reason=shown.finish_reason,
            reward=row.reward,
            replica=shown.replica,
        )
