"""A replica's log of completions: from finished rollouts to one durable Arrow frame and the queue's view of it.

Ids go through unchanged (invariant 5).
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from buffers.rows.arrow import CompletionRows, completions_batch, token_columns
from buffers.rows.records import AcceptedRows
from buffers.rows.schema import COMPLETIONS
from buffers.segments.places import HOME, on_node
from buffers.segments.writer import SegmentWriter
from services.rollout.rows import Finished
from services.run.layout import COMPLETIONS_FOLDER
from streamrl.config import Config
from streamrl.sampling import GroupSampling
from streamrl.types import FrameRef, IntArray, rollout_seed


class CompletionLog:
    """The segment writer of one replica, and what each of its rows has in common. node: on which it writes."""

    def __init__(self, run_folder: Path, config: Config, replica: str, epoch: int, node: str = HOME) -> None:
        self._seed = config.seed
        self._replica = replica
        self._writer = SegmentWriter(
            run_folder,
            on_node(node, COMPLETIONS_FOLDER),
            replica,
            epoch,
            COMPLETIONS,
            config.queue.segment_bytes,
            config.queue.durability,
            config.queue.commit_interval_ms / 1e3,
        )
        self.sampling = GroupSampling(config)

    async def append(self, finished: list[Finished]) -> tuple[FrameRef, AcceptedRows]:
        """Write rollouts of the stream; returns when they are durable."""
        rows = self._rows(finished)
        frame = await asyncio.wrap_future(self._writer.append(completions_batch(rows)))
        numbers = np.array([one.issued.ticket.number for one in finished], np.int64)
        return frame, AcceptedRows.of(rows, numbers)

    @property
    def pause(self) -> str:
        """What a full disk keeps it waiting for, in words; "" while it does not wait."""
        return self._writer.pause

    def close(self) -> None:
        """Seal the segment."""
        self._writer.close()

    def _rows(self, finished: list[Finished]) -> CompletionRows:
        issued = [one.issued for one in finished]
        count = len(finished)
        ids = [one.result.request_id for one in finished]
        return CompletionRows(
            tokens=token_columns([one.prompt_ids for one in issued], [one.result for one in finished]),
            rollout_id=ids,
            branch=np.zeros(count, np.int32),
            group_id=[one.group_id for one in issued],
            prompt_id=[one.prompt_id for one in issued],
            stream=[one.stream for one in issued],
            data_pass=_int32(one.ticket.data_pass for one in issued),
            sample_index=_int32(one.sample_index for one in issued),
            attempt=_int32(one.ticket.attempt for one in issued),
            finish_reason=[one.result.finish_reason.value for one in finished],
            sampling=self.sampling.drawn,
            temperature=np.array([self.sampling.of(one.sample_index).temperature for one in issued]),
            seed=np.array([rollout_seed(self._seed, one) for one in ids], np.int64),
            turns=np.ones(count, np.int32),
            replica=self._replica,
            started_ns=np.array([one.started_ns for one in issued], np.int64),
            finished_ns=np.array([one.finished_ns for one in finished], np.int64),
            payload=[one.payload for one in issued],
        )


def _int32(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, np.int32)
