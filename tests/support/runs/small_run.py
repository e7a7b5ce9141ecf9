"""A whole run of the smallest kind, in one process: a replica, a scorer and a learner with checkpoints around the real
queue, and a book of what was acknowledged, kept by nobody of them.

The learner's weights are how often it trained each group, so they say by themselves whether one was trained twice.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.recovery.verify import verify_queue
from streamrl.buffers.rows.arrow import CompletionRows, completions_batch, scores_batch, token_columns
from streamrl.buffers.rows.gather import rollout_rows
from streamrl.buffers.rows.records import AcceptedRows, Lease, QueueSettings, ScoredRows, UnscoredFrame
from streamrl.buffers.rows.schema import COMPLETIONS, SCORES
from streamrl.buffers.segments.places import COMPLETIONS_DIR, SCORES_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.removal import SegmentRemover
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.clock import SystemClock
from streamrl.learner.checkpoint import checkpoint
from streamrl.types import FinishReason, GenerationResult, SamplingParams, Score, Ticket, Version, VersionSpan

GROUP_SIZE, GROUPS_PER_STEP, STEPS = 2, 2, 6
GROUPS = GROUPS_PER_STEP * STEPS
CHECKPOINT_EVERY = 2
SEGMENT_BYTES = 2**13
"""A few frames: segments are sealed and begun anew several times in a run."""
SPARE_BYTES = 2 * SEGMENT_BYTES
REPLICA, SCORER = "replica-0", "reward"

Tell = Callable[[dict[str, Any]], None]
"""Takes one fact at once: what was acknowledged, the moment it was."""


class Order:
    def at(self, n: int, /) -> tuple[int, int]:
        return divmod(n, 5)


def queue_settings(retain: Literal["all", "covered"] = "all") -> QueueSettings:
    return QueueSettings(
        group_size=GROUP_SIZE,
        groups_per_step=GROUPS_PER_STEP,
        max_staleness=1,
        byte_budget=10**9,
        rollout_bytes=10**5,
        total_groups=GROUPS,
        commit_interval_s=0.0,
        retain=retain,
        fingerprint="data",
    )


def token_ids(number: int, sample: int) -> list[int]:
    """What a rollout samples, whoever generates it."""
    return [1000 * number + 10 * sample + place for place in range(1 + sample)]


def components_of(number: int, sample: int) -> dict[str, float]:
    """Of a score, in the log alone: the queue is told of them only where its settings name them."""
    return {"place": float(number % 3 * sample), "sample": float(sample)}


def reward_of(number: int, sample: int) -> float:
    return number + sample / 10


def completion_rows(ticket: Ticket, step: int) -> CompletionRows:
    """The rows of one group, sampled under the version of `step`."""
    results = [_result(ticket.number, sample, step) for sample in range(GROUP_SIZE)]
    ones = np.ones(GROUP_SIZE, np.int32)
    return CompletionRows(
        tokens=token_columns([np.array([ticket.number], np.int32)] * GROUP_SIZE, results),
        rollout_id=[result.request_id for result in results],
        branch=0 * ones,
        group_id=[str(ticket.number)] * GROUP_SIZE,
        prompt_id=[str(ticket.data_index)] * GROUP_SIZE,
        stream=["train"] * GROUP_SIZE,
        data_pass=ticket.data_pass * ones,
        sample_index=np.arange(GROUP_SIZE, dtype=np.int32),
        attempt=ticket.attempt * ones,
        finish_reason=["stop"] * GROUP_SIZE,
        sampling=SamplingParams(),
        seed=np.zeros(GROUP_SIZE, np.int64),
        turns=ones,
        replica=REPLICA,
        started_ns=np.zeros(GROUP_SIZE, np.int64),
        finished_ns=np.ones(GROUP_SIZE, np.int64),
        payload=["{}"] * GROUP_SIZE,
    )


def _result(number: int, sample: int, step: int) -> GenerationResult:
    ids = np.array(token_ids(number, sample), np.int32)
    logprobs = np.full(len(ids), -0.5, np.float32)
    spans = (VersionSpan(0, Version(0, step)),)
    return GenerationResult(f"{number}/{sample}", ids, logprobs, spans, FinishReason.STOP)


@dataclass
class SmallRun:
    """One launch: opens what is in the folder and goes on from there. With `covered`, log files go and are written
    over."""

    folder: Path
    tell: Tell
    retain: Literal["all", "covered"] = "all"
    _writers: list[SegmentWriter] = field(default_factory=list)

    async def to_the_end(self) -> list[int]:
        """Train every step that is left. Returns how often each group was trained."""
        found = checkpoint.find_newest(self.folder / "checkpoints").newest
        self.step = 0 if found is None else found.version.step
        self.trained = torch.zeros(GROUPS, dtype=torch.int64) if found is None else found.tensor("model/trained")
        self.tell({"kind": "resumed", "step": self.step})
        self.queue = ReplayQueue.open(self.folder, queue_settings(self.retain), Order(), SystemClock(), self.step)
        if self.step == STEPS:
            self.queue.close()
            return self.trained.tolist()
        try:
            self.epoch = await self.queue.next_epoch(REPLICA)
            loops = [asyncio.ensure_future(loop()) for loop in (self._learn, self._rollouts, self._scores)]
            done, _ = await asyncio.wait(loops, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            self.queue.close()
        await asyncio.gather(*loops, return_exceptions=True)
        # The first error, not one that it caused.
        for loop in [*done, *loops]:
            loop.result()
        # Only here: a run that ended by an error leaves its segments as a killed process would, however far it was.
        for writer in self._writers:
            await asyncio.to_thread(writer.close)
        return self.trained.tolist()

    async def _rollouts(self) -> None:
        epoch = self.epoch
        log = self._writer(COMPLETIONS_DIR, REPLICA, epoch, COMPLETIONS)
        sequence = 0
        while tickets := await self.queue.take(REPLICA, epoch, Version(0, self.step), 2):
            self.tell({"kind": "issued", "numbers": [ticket.number for ticket in tickets]})
            for ticket in tickets:
                rows = completion_rows(ticket, ticket.last_step - 1)
                frame = await asyncio.wrap_future(log.append(completions_batch(rows)))
                numbers = np.full(GROUP_SIZE, ticket.number, np.int64)
                await self.queue.accept(REPLICA, epoch, sequence, frame, AcceptedRows.of(rows, numbers))
                self.tell({"kind": "accepted", "number": ticket.number})
                sequence += 1

    async def _scores(self) -> None:
        epoch = await self.queue.next_epoch(SCORER)
        log = self._writer(SCORES_DIR, SCORER, epoch, SCORES)
        sequence = 0
        while frames := await self.queue.unscored(SCORER, epoch, 100):
            for part in frames:
                await self._score(log, epoch, sequence, part)
                sequence += 1

    async def _score(self, log: SegmentWriter, epoch: int, sequence: int, part: UnscoredFrame) -> None:
        keys = list(zip(part.number.tolist(), part.sample_index.tolist(), strict=True))
        rewards = [reward_of(*key) for key in keys]
        verdicts = [Score.ok(reward, components_of(*key)) for key, reward in zip(keys, rewards, strict=True)]
        names = [f"{number}/{sample}" for number, sample in keys]
        batch = scores_batch(names, part.branch, verdicts, scorer=SCORER, scored_ns=0)
        frame = await asyncio.wrap_future(log.append(batch))
        valid = np.ones(len(keys), np.bool_)
        columns = part.number, part.sample_index, part.branch, part.attempt, valid, np.array(rewards)
        await self.queue.add_scores(SCORER, epoch, sequence, frame, ScoredRows(*columns))
        self.tell({"kind": "scored", "keys": keys})

    async def _learn(self) -> None:
        while self.step < STEPS:
            lease = await self.queue.lease(self.step)
            assert lease is not None
            check_rows(self.folder, lease)
            groups = sorted(set(lease.group.tolist()))
            self.trained[groups] += 1
            await self.queue.commit(self.step)
            self.tell({"kind": "committed", "step": self.step, "groups": groups})
            self.step += 1
            self.queue.serving(REPLICA, self.epoch, Version(0, self.step))
            if self.step % CHECKPOINT_EVERY == 0 or self.step == STEPS:
                await asyncio.to_thread(self._save)
                self.tell({"kind": "saved", "step": self.step, "trained": self.trained.tolist()})
                await self.queue.covered(self.step)
                await self._remove_logs()
        self.queue.close()

    async def _remove_logs(self) -> None:
        """Those that the checkpoint lets go; the next segments are written over some of them."""
        remover = SegmentRemover(self.folder, "disk", SPARE_BYTES)
        await remover.remove(self.queue.removable(self.step)[0])
        await remover.freed()

    def _save(self) -> None:
        snapshot = checkpoint.Snapshot(
            Version(self.queue.incarnation, self.step),
            [("model/trained", self.trained), ("exp_avg/trained", self.trained.to(torch.float32) / 3)],
            ledger_position=self.step,
            extra={},
        )
        checkpoint.save(self.folder / "checkpoints", snapshot, keep=1)

    def _writer(self, folder: str, name: str, epoch: int, schema: Any) -> SegmentWriter:
        writer = SegmentWriter(self.folder, folder, name, epoch, schema, SEGMENT_BYTES, "disk", 0.0)
        self._writers.append(writer)
        return writer

    def rest(self) -> None:
        """Wait for what the writers of a run that was left still do beside it: a process that ended does nothing."""
        for writer in self._writers:
            writer._beside.shutdown(wait=True)


def check_rows(folder: Path, lease: Lease) -> None:
    """The rows of a lease are those that were sampled, token by token, with their rewards."""
    reader = SegmentReader(folder)
    frames = [reader.read(frame) for frame in lease.frames]
    rows = rollout_rows(
        frames, lease.frame_index, lease.row, lease.group, lease.sample_index, lease.rewards, lease.valid
    )
    for place, key in enumerate(zip(lease.group.tolist(), lease.sample_index.tolist(), strict=True)):
        ids = rows.token_ids[rows.offsets[place] : rows.offsets[place + 1]].tolist()
        assert ids == [key[0], *token_ids(*key)], (key, ids)
        assert lease.rewards[place] == reward_of(*key), key


class Book:
    """What was acknowledged, in the order in which it was."""

    def __init__(self, facts: Iterable[dict[str, Any]] = ()) -> None:
        self.facts = list(facts)

    @classmethod
    def read(cls, path: Path) -> "Book":
        """From a file of JSON lines; a process that was killed may have left the last one unfinished."""
        return cls(json.loads(line) for line in path.read_text().split("\n")[:-1])

    def of(self, kind: str) -> Iterator[dict[str, Any]]:
        return (fact for fact in self.facts if fact["kind"] == kind)

    def check(self, folder: Path) -> None:
        """Go on with the run that lies in `folder`, to its end. Raises AssertionError where it has not what the book
        says, or whatever the run itself raises."""
        expected = {fact["step"]: fact for fact in self.of("saved")}
        found = checkpoint.find_newest(folder / "checkpoints").newest
        step = 0 if found is None else found.version.step
        assert step >= max(expected, default=0), f"the checkpoint of step {max(expected, default=0)} is lost: {step}"
        if found is not None and step in expected:
            assert found.tensor("model/trained").tolist() == expected[step]["trained"]
        self._check_queue(folder, step)
        damage = verify_queue(folder, step).damage
        assert not damage, damage
        again = Book()
        trained = asyncio.run(SmallRun(folder, again.facts.append, "covered").to_the_end())
        assert trained == [1] * GROUPS, f"trained {trained}"
        committed = {fact["step"]: fact["groups"] for fact in self.of("committed")}
        for fact in again.of("committed"):
            assert committed.get(fact["step"], fact["groups"]) == fact["groups"], f"step {fact['step']}: other groups"

    def _check_queue(self, folder: Path, step: int) -> None:
        """Opened and left at once, as by a process that dies again: everything acknowledged is in the books."""
        queue = ReplayQueue.open(folder, queue_settings(), Order(), SystemClock(), step)
        counts = queue.counts()
        queue.close()
        issued = {number for fact in self.of("issued") for number in fact["numbers"]}
        accepted = {fact["number"] for fact in self.of("accepted")}
        scored = {tuple(key) for fact in self.of("scored") for key in fact["keys"]}
        rows = counts.rows_complete + counts.rows_scored + counts.rows_ready + counts.rows_leased + counts.rows_trained
        again = {fact["step"]: len(fact["groups"]) for fact in self.of("committed") if fact["step"] >= step}
        assert counts.groups_issued >= len(issued), f"{counts.groups_issued} groups issued, the book has {len(issued)}"
        assert rows >= len(accepted) * GROUP_SIZE, f"{rows} rows accepted, the book has {len(accepted) * GROUP_SIZE}"
        assert rows - counts.rows_complete >= len(scored), f"{counts} has fewer scores than {len(scored)}"
        assert counts.groups_ready + counts.groups_trained >= sum(again.values()) + step * GROUPS_PER_STEP
        assert not counts.groups_dropped
