"""A replica's log of completions: from finished rollouts to one durable Arrow frame and the queue's view of it.

Ids go through unchanged (invariant 5).
"""

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamrl.algorithms.group_sampling import GroupSampling
from streamrl.buffers.rows.arrow import CompletionRows, TokenColumns, completions_batch, token_columns
from streamrl.buffers.rows.records import AcceptedRows
from streamrl.buffers.rows.schema import COMPLETIONS
from streamrl.buffers.rows.trajectory_rows import branch_columns
from streamrl.buffers.segments.places import HOME, on_node
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.config import Config
from streamrl.ids import rollout_seed
from streamrl.services.rollout.rows import Finished, FinishedEpisode
from streamrl.services.run.layout import COMPLETIONS_FOLDER
from streamrl.types import FrameRef, IntArray


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

    async def append(self, finished: "Sequence[Finished | FinishedEpisode]") -> tuple[FrameRef, AcceptedRows]:
        """Write rollouts of the stream, all of one kind; returns when they are durable."""
        episodes = [one for one in finished if isinstance(one, FinishedEpisode)]
        single = [one for one in finished if isinstance(one, Finished)]
        rows = self._episode_rows(episodes) if episodes else self._rows(single)
        frame = await asyncio.wrap_future(self._writer.append(completions_batch(rows)))
        number_of = {one.rollout: one.issued.ticket.number for one in finished}
        numbers = np.array([number_of[rollout] for rollout in rows.rollout_id], np.int64)
        return frame, AcceptedRows.of(rows, numbers)

    @property
    def pause(self) -> str:
        """What a full disk keeps it waiting for, in words; "" while it does not wait."""
        return self._writer.pause

    def close(self) -> None:
        """Seal the segment."""
        self._writer.close()

    def _rows(self, finished: Sequence[Finished]) -> CompletionRows:
        issued = [one.issued for one in finished]
        return self._completion_rows(
            finished,
            token_columns([one.prompt_ids for one in issued], [one.result for one in finished]),
            branch=np.zeros(len(issued), np.int32),
            finish_reason=[one.result.finish_reason.value for one in finished],
            turns=np.ones(len(issued), np.int32),
            payload=[one.payload for one in issued],
        )

    def _episode_rows(self, finished: Sequence[FinishedEpisode]) -> CompletionRows:
        """A row for each branch; those of one episode have its names in common, and those of one agent its payload."""
        branches = [branch for one in finished for branch in one.episode.branches]
        each = [one for one in finished for _ in one.episode.branches]
        payloads = [
            one.episode.payload(one.issued.payload, place)
            for one in finished
            for place in range(len(one.episode.branches))
        ]
        return self._completion_rows(
            each,
            branch_columns(branches),
            branch=_int32(place for one in finished for place in range(len(one.episode.branches))),
            finish_reason=[branch.finish_reason for branch in branches],
            turns=_int32(len(branch.turns) for branch in branches),
            payload=payloads,
        )

    def _completion_rows(
        self, each: "Sequence[Finished] | Sequence[FinishedEpisode]", tokens: TokenColumns, **columns: Any
    ) -> CompletionRows:
        """each: the rollout of each row."""
        issued = [one.issued for one in each]
        ids = [one.rollout for one in each]
        return CompletionRows(
            tokens=tokens,
            rollout_id=ids,
            group_id=[one.group_id for one in issued],
            prompt_id=[one.prompt_id for one in issued],
            stream=[one.stream for one in issued],
            data_pass=_int32(one.ticket.data_pass for one in issued),
            sample_index=_int32(one.sample_index for one in issued),
            attempt=_int32(one.ticket.attempt for one in issued),
            sampling=self.sampling.drawn,
            temperature=np.array([self.sampling.of(one.sample_index).temperature for one in issued]),
            seed=np.array([rollout_seed(self._seed, one) for one in ids], np.int64),
            replica=self._replica,
            started_ns=np.array([one.started_ns for one in issued], np.int64),
            finished_ns=np.array([one.finished_ns for one in each], np.int64),
            **columns,
        )


def _int32(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, np.int32)
