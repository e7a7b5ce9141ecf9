"""The reward stage: scores each rollout as soon as it is durable.

Rows are read by memory map, decoded, and scored in child processes; a verdict becomes a row of the scores log and is
then told to the queue. A failed score is a fact, not a zero (invariant 8); too many of them stop the run, with the
last reason given. How many children there are to be may change at any time, and with it how many rows are taken at
once.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from ray.actor import ActorHandle

from streamrl.buffers.rows.arrow import scores_batch
from streamrl.buffers.rows.gather import ScoringRows, scoring_rows
from streamrl.buffers.rows.records import ScoredRows, UnscoredFrame
from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.config import Config
from streamrl.config.schema.streams import TASK
from streamrl.errors import ComponentError
from streamrl.evaluation import EvalScore, evaluation_score
from streamrl.models.tokenizer import load_tokenizer
from streamrl.observability.component_means import ComponentTotals
from streamrl.rewards.base import component_columns, with_components
from streamrl.rewards.pool import RewardPool
from streamrl.services.actors.answers import decode
from streamrl.services.actors.deadline import within, within_or_paused
from streamrl.services.actors.observe import Observer
from streamrl.services.actors.process_environment import extend_import_path
from streamrl.services.queue.far_rows import FarRows
from streamrl.services.reward.children import reward_pool
from streamrl.services.reward.items import reward_items
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import SCORES_FOLDER, model_folder
from streamrl.types import Score, ScoreStatus

NAME = "reward"


class RewardActor:
    """See the module."""

    def __init__(
        self, run_folder: str, config: dict[str, Any], queue: ActorHandle, home: ActorHandle | None = None
    ) -> None:
        extend_import_path()
        self._config = msgspec.convert(config, Config)
        self._run = RunFolder.open(Path(run_folder))
        self._queue = queue
        self._far = FarRows(NAME, home, self._config.deadlines.step_s, leases=False)
        self._observer = Observer(self._run, self._config, NAME)
        self._failures = FailureShare(self._config.rollouts_per_step, self._config.reward.max_failed)
        self._scored = 0
        self._totals = ComponentTotals()
        self._ended_by: ComponentError | None = None
        self._workers = self._config.reward.workers
        self._told = -1
        self._pool: RewardPool | None = None

    async def start(self, epoch: int, workers: int | None = None) -> None:
        """Load the tokenizer, start the children, open the scores log. `epoch` fences an earlier process. workers: how
        many children, as of the configuration when None; what `scale` said, which is newer, holds in its place."""
        self._epoch = epoch
        if workers is not None and self._told < 0:
            self._workers = workers
        queue = self._config.queue
        self._tokenizer = load_tokenizer(model_folder(self._run.path, self._config))
        self._reader = SegmentReader(self._run.path)
        pool = reward_pool(self._config, self._run.path, self._workers)
        await within(self._config.deadlines.start_s, pool.start(), who=NAME, what="the start of its children")
        self._pool = pool
        pool.scale(self._workers)  # it may have been told another number meanwhile
        self._writer = SegmentWriter(
            self._run.path,
            SCORES_FOLDER,
            NAME,
            self._epoch,
            SCORES,
            queue.segment_bytes,
            queue.durability,
            queue.commit_interval_ms / 1e3,
        )

    async def run(self) -> None:
        """Score until the queue is closed."""
        sequence = 0
        try:
            while frames := await self._queue.unscored.remote(NAME, self._epoch, self._most_rows()):
                lost = await self._far.lost(one.frame for one in frames)
                frames = [one for one in frames if one.frame not in lost]
                if frames:
                    with self._observer.span("score"):
                        await self._score_frames(frames, sequence)
                    sequence += 1
        except ComponentError as error:
            self._ended_by = error
            raise
        finally:
            await self._children().close()
            await asyncio.to_thread(self._writer.close)
            self._observer.close()

    async def scale(self, number: int, workers: int) -> None:
        """Have so many children from now on. Waits for none of them. number: of this word; an older one that comes late
        is ignored."""
        if number > self._told:
            self._told, self._workers = number, workers
            if self._pool is not None:
                self._pool.scale(workers)

    async def score_evaluation(self, answers: bytes) -> EvalScore:
        """The mean over the held-out answers of one version; failed ones are left out and counted."""
        held_out = decode(answers)
        try:
            scores = await self._children().score(held_out.items)
        except ComponentError as error:
            # What ended the stage is the cause; that its pool is closed is what follows from it.
            raise self._ended_by or error from None
        return evaluation_score(held_out, scores)

    async def status(self) -> dict[str, Any]:
        """workers: children that are given work; busy of these have some, the oldest of it for oldest_s. answered:
        batches that came to an end. not_started: why one that was to join did not come up."""
        pool = self._children()
        children = {"workers": pool.size, "children_lost": pool.lost, "not_started": pool.not_started}
        children |= {"busy": pool.busy, "oldest_s": pool.oldest_s, "answered": pool.answered}
        return {
            "name": NAME,
            "scored": self._scored,
            **children,
            "paused": self._writer.pause,
        }

    def _children(self) -> RewardPool:
        if self._pool is None:
            raise ComponentError("reward: its children have not started yet")
        return self._pool

    def _most_rows(self) -> int:
        """Of one hand-out."""
        return self._config.reward.batch_size * self._children().wanted

    async def _score_frames(self, frames: list[UnscoredFrame], sequence: int) -> None:
        parts = [scoring_rows(self._reader.read(one.frame), one.row) for one in frames]
        self._reader.forget_copies()
        of_episodes = self._config.plays_episodes
        items = [item for part in parts for item in reward_items(part, self._tokenizer, of_episodes=of_episodes)]
        names = self._config.learner.algorithm.component_names
        scores = [with_components(score, names) for score in await self._children().score(items)]
        self._scored += len(scores)
        self._totals.add(scores)
        self._log_failures(scores)
        self._failures.add([score for score, own in zip(scores, _of_the_run(parts), strict=True) if own])
        frame = await asyncio.wrap_future(self._writer.append(_batch(parts, scores)))
        rows = ScoredRows(
            number=np.concatenate([one.number for one in frames]),
            sample_index=np.concatenate([one.sample_index for one in frames]),
            branch=np.concatenate([one.branch for one in frames]),
            attempt=np.concatenate([one.attempt for one in frames]),
            valid=np.array([score.status is ScoreStatus.OK for score in scores]),
            reward=np.array([np.nan if score.reward is None else score.reward for score in scores]),
            components=component_columns(scores, names) if names else None,
            reason=[score.reason for score in scores],
        )
        receipt: Any = self._queue.add_scores.remote(NAME, self._epoch, sequence, frame, rows, self._totals.told)
        limit = self._config.deadlines.step_s
        await within_or_paused(limit, receipt, who=NAME, what="the queue's receipt", pause=self._queue.pause.remote)

    def _log_failures(self, scores: list[Score]) -> None:
        """One line for each reason in a batch, with how many it hit: a reason may come with every rollout."""
        for reason, count in Counter(score.reason for score in scores if score.status is ScoreStatus.FAILED).items():
            self._observer.log.warning("no score", reason=reason, rollouts=count)


class FailureShare:
    """Stops a run whose rewards fail. Pure.

    Looks at the newest `window` scores, once there are so many; `limit` is the share of failures that is too much.
    """

    def __init__(self, window: int, limit: float) -> None:
        self._window = window
        self._limit = limit
        self._recent: list[Score] = []

    def add(self, scores: list[Score]) -> None:
        """Raises ComponentError when more than the limit failed, with the newest reason."""
        self._recent = [*self._recent, *scores][-self._window :]
        failed = [score for score in self._recent if score.status is ScoreStatus.FAILED]
        if len(self._recent) < self._window or len(failed) <= self._limit * self._window:
            return
        raise ComponentError(
            f"reward: {len(failed)} of the last {self._window} rollouts have no score, more than reward.max_failed = "
            f"{self._limit:g} allows; the last reason: {failed[-1].reason}"
        )


def _of_the_run(parts: list[ScoringRows]) -> list[bool]:
    """Of each row whether it is of the run's own data. What a client submits may be nothing that the reward can score:
    it is dropped, and the client told so, and ends nobody's run."""
    return [stream == TASK for part in parts for stream in part.stream]


def _batch(parts: list[ScoringRows], scores: list[Score]) -> pa.RecordBatch:
    ids = [rollout for part in parts for rollout in part.rollout_id]
    branch = np.concatenate([part.branch for part in parts])
    return scores_batch(ids, branch, scores, scorer=NAME, scored_ns=time.time_ns())
