"""The log of trajectories that clients made: their rows and verdicts, as durable as those of replicas and scorers.

One writer of the gateway's own, fenced by its epoch. Its files are made with the first trajectory: a run that gets none
has none.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from streamrl.algorithms.group_sampling import GroupSampling
from streamrl.buffers.ledger.records import Offered
from streamrl.buffers.rows.arrow import CompletionRows, completions_batch, scores_batch
from streamrl.buffers.rows.records import AcceptedRows, ScoredRows
from streamrl.buffers.rows.schema import COMPLETIONS, SCORES
from streamrl.buffers.rows.trajectory_rows import branch_columns
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.config import Config
from streamrl.config.schema.streams import OFFERED_STREAM
from streamrl.gateway.sessions.trajectory import Trajectory
from streamrl.ids import group_id, prompt_digest, rollout_id
from streamrl.services.run.layout import COMPLETIONS_FOLDER, SCORES_FOLDER
from streamrl.types import Score

WRITER = "trajectories"
SCORER = "clients"


class TrajectoryLog:
    """See the module. next_epoch: has every earlier writer of its name fenced, and gives the number of the next."""

    def __init__(self, run_folder: Path, config: Config, next_epoch: Callable[[str], Awaitable[int]]) -> None:
        self._run_folder = run_folder
        self._config = config
        self._next_epoch = next_epoch
        self._names = config.learner.algorithm.component_names
        self._opening = asyncio.Lock()
        self._writers: tuple[SegmentWriter, SegmentWriter] | None = None
        self.epoch = -1

    async def write(self, trajectory: Trajectory, place: int) -> Offered:
        """Write it; what the queue is to be told of it, once it is durable. place: how many of its group's name came
        before it.

        Raises:
            ConfigError: its branches together are longer than a file of the log. NonFiniteError, ComponentError: as of
                any writer.
        """
        completions, scores = await self._open()
        rows = self._rows(trajectory, place)
        verdict = Score.ok(trajectory.reward, trajectory.components)
        verdicts = [verdict] * len(trajectory.branches)
        batch = scores_batch(rows.rollout_id, rows.branch, verdicts, scorer=SCORER, scored_ns=time.time_ns())
        written = completions.append(completions_batch(rows)), scores.append(batch)
        frame, score_frame = await asyncio.gather(*map(asyncio.wrap_future, written))
        unknown = np.zeros(len(verdicts), np.int64)  # the group's number, as long as there is none
        accepted = AcceptedRows.of(rows, unknown)
        valid, reward = np.ones(len(verdicts), np.bool_), np.full(len(verdicts), trajectory.reward)
        scored = ScoredRows(unknown, rows.sample_index, rows.branch, rows.attempt, valid, reward)
        return Offered(
            group=trajectory.group,
            key=trajectory.key,
            digest=trajectory.digest,
            frame=frame,
            rows=accepted.packed().tobytes(),
            score_frame=score_frame,
            scores=scored.packed().tobytes(),
            reward=trajectory.reward,
            components=[trajectory.components[name] for name in self._names],
        )

    def close(self) -> None:
        """Seal the files."""
        for writer in self._writers or ():
            writer.close()

    async def _open(self) -> tuple[SegmentWriter, SegmentWriter]:
        async with self._opening:
            if self._writers is None:
                epoch = await self._next_epoch(WRITER)
                self._writers = await asyncio.to_thread(self._make, epoch)
                self.epoch = epoch
            return self._writers

    def _make(self, epoch: int) -> tuple[SegmentWriter, SegmentWriter]:
        queue = self._config.queue
        rest = queue.segment_bytes, queue.durability, queue.commit_interval_ms / 1e3
        completions = SegmentWriter(self._run_folder, COMPLETIONS_FOLDER, WRITER, epoch, COMPLETIONS, *rest)
        return completions, SegmentWriter(self._run_folder, SCORES_FOLDER, WRITER, epoch, SCORES, *rest)

    def _rows(self, trajectory: Trajectory, place: int) -> CompletionRows:
        branches, now = trajectory.branches, time.time_ns()
        count = len(branches)
        prompt = prompt_digest(f"{OFFERED_STREAM}\x00{trajectory.group}", 0)
        group = group_id(prompt, 0)
        zeros = np.zeros(count, np.int32)
        return CompletionRows(
            tokens=branch_columns(branches),
            rollout_id=[rollout_id(group, place)] * count,
            branch=np.arange(count, dtype=np.int32),
            group_id=[group] * count,
            prompt_id=[prompt] * count,
            stream=[OFFERED_STREAM] * count,
            data_pass=zeros,
            sample_index=np.full(count, place, np.int32),
            attempt=zeros,
            finish_reason=[branch.finish_reason for branch in branches],
            sampling=GroupSampling(self._config).drawn,
            seed=np.zeros(count, np.int64),
            turns=np.array([len(branch.turns) for branch in branches], np.int32),
            replica=SCORER,
            started_ns=np.full(count, now, np.int64),
            finished_ns=np.full(count, now, np.int64),
            payload=["{}"] * count,
        )
