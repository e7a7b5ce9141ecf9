"""Scores what a run has generated again, with another reward, and leaves the verdicts in its scores log as a revision.

Guaranteed: nothing that the run has changes before every row is scored; all verdicts of one rescoring count from one
commit of the ledger on, or none does; groups learn from them as `streamrl.buffers.recovery.rescorable` says. The run is
not up: whoever calls this holds its lock.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamrl.buffers.ledger.facts import NONE, LedgerFacts, ledger_facts
from streamrl.buffers.ledger.ledger import Ledger, LedgerFile, read_ledger
from streamrl.buffers.ledger.records import Record, Rescored, RunHeader, Writer
from streamrl.buffers.recovery.rescorable import Needs, by_frame, learn, packed, scored_rows
from streamrl.buffers.rows.arrow import scores_batch
from streamrl.buffers.rows.gather import ScoringRows, score_columns, scoring_rows
from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.places import HOME, LEDGER_DIR, node_of
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.config import Config
from streamrl.errors import ComponentError, DataError, RunFolderError
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.rewards.base import with_components
from streamrl.rewards.pool import RewardPool
from streamrl.services.reward.children import reward_pool
from streamrl.services.reward.items import reward_items
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import SCORES_FOLDER, model_folder
from streamrl.types import FrameRef, LongArray, Score, ScoreStatus

SCORER: Final = "rescore"
"""The name under which the verdicts stand in the scores log."""


class Rescoring(msgspec.Struct, frozen=True, kw_only=True):
    """What a rescoring did. rows: that were scored; failed: of these, without a score; reason: the last one's. gone:
    rows whose completions are not in this run folder any more. learning: groups that no checkpoint has: the run that
    goes on trains them with the new verdicts. before, after: mean rewards of the same rows;
    None where none has a score."""

    revision: int
    rows: int
    failed: int
    reason: str
    gone: int
    learning: int
    before: float | None
    after: float | None


@dataclass(slots=True)
class _Verdicts:
    """Of the rows so far, part by part. entries: their places in the facts. frames: of the scores log."""

    entries: list[LongArray] = field(default_factory=list)
    scores: list[list[Score]] = field(default_factory=list)
    frames: list[FrameRef] = field(default_factory=list)

    @property
    def all(self) -> list[Score]:
        return list(chain.from_iterable(self.scores))

    @property
    def failed(self) -> list[Score]:
        return [score for score in self.all if score.status is ScoreStatus.FAILED]

    def valid(self) -> npt.NDArray[np.bool_]:
        return np.array([score.status is ScoreStatus.OK for score in self.all], np.bool_)


async def rescore(run: RunFolder, config: Config) -> Rescoring:
    """Score every row of `run` that has a verdict with the reward of `config`.

    Raises:
        RunFolderError: nothing was generated, or nothing of it is here. ComponentError: more rows have no score than
        reward.max_failed allows; no verdict has changed then. ConfigError: the reward cannot be had. DataError: damage.
    """
    files = read_ledger(run.path / LEDGER_DIR) if (run.path / LEDGER_DIR).exists() else []
    facts = ledger_facts(files)
    wanted = scored_rows(facts)
    if not len(wanted):
        raise RunFolderError(f"run {run.name} has no scored rollout yet, so there is nothing to score again")
    revision = 1 + max((one.revision for one in _records(files) if isinstance(one, Rescored)), default=0)
    ledger, epoch = _open_ledger(run, config, files)
    try:
        verdicts = await _Scoring(run, config, facts, revision).score(wanted, epoch)
        _refuse(run, config, verdicts)
        learns = _learns(config, facts, verdicts)
        ledger.append(*_as_records(facts, verdicts, learns, revision), Writer(SCORER, epoch + 1)).result()
    finally:
        ledger.close()
    return _score_list(run, facts, verdicts, learns, revision, len(wanted))


def _records(files: list[LedgerFile]) -> Iterator[Record]:
    return (record for file in files for record in file.records)


def _open_ledger(run: RunFolder, config: Config, files: list[LedgerFile]) -> tuple[Ledger, int]:
    """A new file of the ledger, and the epoch under which this process writes: no segment has that name yet."""
    header = [record for record in _records(files) if isinstance(record, RunHeader)][-1]
    epochs = [record.epoch for record in _records(files) if isinstance(record, Writer) and record.name == SCORER]
    ledger = Ledger(
        run.path / LEDGER_DIR,
        msgspec.structs.replace(header, previous_bytes=files[-1].good_bytes),
        durability=config.queue.durability,
        commit_interval_s=config.queue.commit_interval_ms / 1e3,
    )
    epoch = max(epochs, default=-1) + 1
    ledger.append(Writer(SCORER, epoch)).result()
    return ledger, epoch


class _Scoring:
    """Rows read, scored and written."""

    def __init__(self, run: RunFolder, config: Config, facts: LedgerFacts, revision: int) -> None:
        self._run = run
        self._config = config
        self._facts = facts
        self._revision = revision
        self._reader = SegmentReader(run.path)
        self._names = config.learner.algorithm.component_names

    async def score(self, wanted: LongArray, epoch: int) -> _Verdicts:
        """The verdicts on those of these rows that are here, in the scores log."""
        tokenizer = load_tokenizer(model_folder(self._run.path, self._config))
        verdicts, config = _Verdicts(), self._config
        async with reward_pool(config, self._run.path, config.reward.workers) as pool:
            with closing(self._writer(epoch)) as writer:
                for rows, entries in self._parts(wanted):
                    scores = await self._verdicts(pool, tokenizer, rows)
                    verdicts.entries.append(entries)
                    verdicts.scores.append(scores)
                    verdicts.frames.append(writer.append(self._batch(rows, scores)).result())
        return verdicts

    def _writer(self, epoch: int) -> SegmentWriter:
        queue = self._config.queue
        return SegmentWriter(
            self._run.path,
            SCORES_FOLDER,
            SCORER,
            epoch,
            SCORES,
            queue.segment_bytes,
            queue.durability,
            queue.commit_interval_ms / 1e3,
        )

    def _parts(self, wanted: LongArray) -> Iterator[tuple[list[ScoringRows], LongArray]]:
        """Rows of some frames at a time: enough to keep every child at work."""
        most = self._config.reward.batch_size * self._config.reward.workers
        rows: list[ScoringRows] = []
        entries: list[LongArray] = []
        for frame, part in by_frame(self._facts, wanted):
            if (found := self._read(frame, part)) is not None:
                rows.append(found)
                entries.append(part)
            if sum(map(len, entries)) >= most:
                yield rows, np.concatenate(entries)
                rows, entries = [], []
        if entries:
            yield rows, np.concatenate(entries)

    def _read(self, frame: FrameRef, part: LongArray) -> ScoringRows | None:
        """None where its file was let go, or lies on another node."""
        if not self._reader.has(frame.path) and node_of(frame.path) == HOME:
            return None
        try:
            return scoring_rows(self._reader.read(frame), self._facts.rows["row"][part])
        except DataError:
            if node_of(frame.path) == HOME:
                raise
            return None

    async def _verdicts(self, pool: RewardPool, tokenizer: TextTokenizer, rows: list[ScoringRows]) -> list[Score]:
        episodes = self._config.plays_episodes
        items = [item for part in rows for item in reward_items(part, tokenizer, of_episodes=episodes)]
        return [with_components(score, self._names) for score in await pool.score(items)]

    def _batch(self, rows: list[ScoringRows], scores: list[Score]) -> pa.RecordBatch:
        ids = [rollout for part in rows for rollout in part.rollout_id]
        branch = np.concatenate([part.branch for part in rows])
        return scores_batch(ids, branch, scores, scorer=SCORER, scored_ns=time.time_ns(), revision=self._revision)


def _refuse(run: RunFolder, config: Config, verdicts: _Verdicts) -> None:
    """Raise where too few rows have a score to go on with them."""
    rows, failed, limit = len(verdicts.all), verdicts.failed, config.reward.max_failed
    if not rows:
        raise RunFolderError(f"the completions of run {run.name} are not in {run.path} any more")
    if len(failed) > limit * rows:
        raise ComponentError(
            f"reward {config.reward.rule.name!r}: {len(failed)} of {rows} rollouts have no score, more than "
            f"reward.max_failed = {limit:g} allows, so all keep those that they have; the last reason: "
            f"{failed[-1].reason}"
        )


def _learns(config: Config, facts: LedgerFacts, verdicts: _Verdicts) -> npt.NDArray[np.bool_]:
    needs = Needs(min(2, config.rollout.group_size), config.greedy_sample)
    return learn(facts, np.concatenate(verdicts.entries), verdicts.valid(), needs)


def _as_records(
    facts: LedgerFacts, verdicts: _Verdicts, learns: npt.NDArray[np.bool_], revision: int
) -> Iterator[Rescored]:
    ends = np.cumsum([len(part) for part in verdicts.entries])
    parts = np.split(learns, ends[:-1])
    for frame, entries, counts in zip(verdicts.frames, verdicts.entries, parts, strict=True):
        yield Rescored(SCORER, frame, packed(facts, entries, counts).tobytes(), revision)


def _score_list(
    run: RunFolder,
    facts: LedgerFacts,
    verdicts: _Verdicts,
    learns: npt.NDArray[np.bool_],
    revision: int,
    wanted: int,
) -> Rescoring:
    entries, failed = np.concatenate(verdicts.entries), verdicts.failed
    trained = facts.trained_step()[entries]
    open_ = learns & ((trained == NONE) | (trained >= facts.covered_step))
    after = [score.reward for score in verdicts.all if score.reward is not None]
    before = _rewards(SegmentReader(run.path), facts, entries)
    return Rescoring(
        revision=revision,
        rows=len(entries),
        failed=len(failed),
        reason=failed[-1].reason if failed else "",
        gone=wanted - len(entries),
        learning=len(np.unique(facts.rows["number"][entries[open_]])),
        before=float(np.mean(before)) if len(before) else None,
        after=float(np.mean(after)) if after else None,
    )


def _rewards(reader: SegmentReader, facts: LedgerFacts, entries: LongArray) -> npt.NDArray[np.float64]:
    """The rewards that these rows had, of those that are here and have one."""
    found = [np.zeros(0)]
    for place in np.unique(facts.score_frame[entries]).tolist():
        frame = facts.score_frames[place]
        if reader.has(frame.path):
            there = facts.score_row[entries[facts.score_frame[entries] == place]]
            rewards = score_columns(reader.read(frame))[1][there]
            found.append(rewards[np.isfinite(rewards)])
    return np.concatenate(found)
