"""The durable queue beside a plain book, on any schedule, with ends and crashes in between.

Hypothesis prints the steps of a failing schedule and a line that replays it.
"""

import shutil

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from support.faults.fault_scale import scaled
from support.queue.booked_queue import (
    ERROR,
    REPLICAS,
    ROW_BYTES,
    SCORER,
    STOP,
    TOKENS,
    BookedGroup,
    BookedQueue,
    BookedRow,
    Order,
    frame_of,
    keys_of,
    packed_rows,
)

from streamrl.buffers.ledger.facts import RowState, ledger_facts
from streamrl.buffers.ledger.frames import pack_frame, read_frames
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.recovery.last_books import last_books
from streamrl.buffers.segments.places import COMPLETIONS_DIR, LEDGER_DIR
from streamrl.errors import ComponentError, DataError, FencedError, StartAgainError
from streamrl.types import FrameRef, Version


class QueueBeside(BookedQueue):
    """Random schedules of everything that may happen to a queue, its own end and return among them."""

    @initialize(size=st.integers(1, 3), per_step=st.integers(1, 2), staleness=st.integers(0, 2))
    def start(self, size: int, per_step: int, staleness: int) -> None:
        self.begin(size, per_step, staleness)

    # Replicas

    @rule(replica=st.sampled_from(REPLICAS), lag=st.integers(0, 1), room=st.integers(1, 4))
    def take(self, replica: str, lag: int, room: int) -> None:
        serving = max(0, self.step - lag)
        version = Version(self.queue.incarnation, serving)
        for ticket in self.attempt(self.queue.take(replica, self.epoch[replica], version, room)) or []:
            group = self.book.get(ticket.number)
            if group is None:
                assert ticket.number == len(self.book)
                assert (ticket.attempt, ticket.last_step) == (0, serving + self.staleness)
                group = self.book[ticket.number] = BookedGroup(0, ticket.last_step, replica)
                going = sum(group.state in ("running", "ready", "leased", "trained") for group in self.book.values())
                assert going <= (self.staleness + serving + 1) * self.per_step
            else:
                assert (group.state, group.replica, ticket.attempt) == ("running", None, group.attempt + 1)
                assert ticket.last_step == group.last_step if group.rows else ticket.last_step >= group.last_step
            assert (ticket.data_pass, ticket.data_index) == Order().at(ticket.number)
            group.attempt, group.last_step, group.replica = ticket.attempt, ticket.last_step, replica
            if not group.rows:
                group.floor = ticket.attempt

    @precondition(lambda self: self.book)
    @rule(data=st.data(), replica=st.sampled_from(REPLICAS), finish=st.sampled_from([STOP, STOP, STOP, ERROR]))
    def accept(self, data: st.DataObject, replica: str, finish: int) -> None:
        """Rows of one or two groups, most often of such that run; some a second time, some of an older attempt."""
        anywhere = data.draw(st.integers(0, 5)) == 0
        numbers = sorted(self.book) if anywhere else self.in_state("running") or sorted(self.book)
        keys = st.tuples(st.sampled_from(numbers), st.integers(0, self.size - 1))
        chosen = data.draw(st.lists(keys, min_size=1, max_size=2 * self.size))
        attempts = [max(0, self.book[number].attempt - data.draw(st.integers(0, 1))) for number, _ in chosen]
        oldest = [max(0, self.book[number].last_step - self.staleness) for number, _ in chosen]
        rows = packed_rows(chosen, attempts, oldest, finish)
        frame = FrameRef(f"{COMPLETIONS_DIR}/r.arrow", 10**4 * self.frames, ROW_BYTES * len(chosen), len(chosen), 7, 9)
        self.frames += 1
        sequence = self.sequence[replica]
        self.sequence[replica] += 1
        self.wait(self.queue.accept(replica, self.epoch[replica], sequence, frame, rows))
        self.calls[replica, sequence] = frame, rows
        for place, ((number, sample), attempt) in enumerate(zip(chosen, attempts, strict=True)):
            group = self.book[number]
            if group.state == "running" and sample not in group.rows and attempt >= group.floor:
                failed = (False, float("nan")) if finish == ERROR else None
                group.rows[sample] = BookedRow(frame, place, attempt, oldest[place], failed)
        for number in {number for number, _ in chosen}:
            self.settle(number)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def accept_again(self, data: st.DataObject) -> None:
        """A call that came before, under the same number: acknowledged, and nothing else."""
        replica, sequence = data.draw(st.sampled_from(sorted(self.calls)))
        before = self.queue.counts()
        self.wait(self.queue.accept(replica, self.epoch[replica], sequence, *self.calls[replica, sequence]))
        assert self.queue.counts() == before

    @rule(replica=st.sampled_from(REPLICAS), number=st.integers(0, 3))
    def accept_what_cannot_be(self, replica: str, number: int) -> None:
        """A group that was never issued, beside one that was: nothing is taken of either."""
        before = self.queue.counts()
        rows = packed_rows([(number, 0), (len(self.book) + number, 0)], [0, 0], [10**6, 10**6], STOP)
        with pytest.raises(DataError, match="never issued"):
            self.wait(self.queue.accept(replica, self.epoch[replica], self.sequence[replica], frame_of(2), rows))
        assert self.queue.counts() == before

    @rule(replica=st.sampled_from(REPLICAS), again=st.booleans())
    def release(self, replica: str, again: bool) -> None:
        """Replaced; what it had is taken again at once, or not."""
        lost = self.wait(self.queue.release(replica, self.epoch[replica] + 1))
        self.epoch[replica] += 1
        self.sequence[replica] = 0
        self.calls = {key: call for key, call in self.calls.items() if key[0] != replica}
        assert lost == [number for number, group in sorted(self.book.items()) if group.replica == replica]
        for number in lost:
            self.book[number].replica = None
        if again:
            self.take(replica, 0, 4)

    @precondition(lambda self: max(self.epoch.values()) > 0)
    @rule()
    def act_under_a_stale_epoch(self) -> None:
        replica = max(self.epoch, key=lambda name: self.epoch[name])
        before, old = self.queue.counts(), self.epoch[replica] - 1
        for call in (
            self.queue.take(replica, old, Version(0, 0), 1),
            self.queue.accept(replica, old, 10**6, frame_of(1), packed_rows([(0, 0)], [0], [10**6], STOP)),
            self.queue.release(replica, old),
        ):
            with pytest.raises(FencedError):
                self.wait(call)
        assert self.queue.counts() == before

    # Scorers

    @rule(most=st.integers(1, 4))
    def unscored(self, most: int) -> None:
        held = {key for part in self.held for key in keys_of(part)}
        parts = self.attempt(self.queue.unscored(SCORER, self.scorer_epoch, most)) or []
        given = [key for part in parts for key in keys_of(part)]
        waiting = self.unscored_rows() - held
        assert len(given) == len(set(given)) == min(most, len(waiting))
        assert set(given) <= waiting
        for part in parts:
            for place, (number, sample) in enumerate(keys_of(part)):
                row = self.book[number].rows[sample]
                assert (part.frame, part.row[place], part.attempt[place]) == (row.frame, row.row, row.attempt)
        self.held += parts

    @precondition(lambda self: self.held)
    @rule(data=st.data(), again=st.booleans())
    def add_scores(self, data: st.DataObject, again: bool) -> None:
        part = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        valid = [data.draw(st.integers(0, 4)) > 0 for _ in part.number]
        call = self.verdicts(part, valid, self.scorer_epoch)
        self.wait(self.queue.add_scores(SCORER, self.scorer_epoch, self.scored, *call))
        for (number, sample), is_valid, reward in zip(keys_of(part), valid, call[1].reward.tolist(), strict=True):
            row = self.book[number].rows[sample]
            if self.book[number].state == "running" and row.verdict is None:
                row.verdict = is_valid, reward
        for number in set(part.number.tolist()):
            self.settle(number)
        before = self.queue.counts()
        if again:
            self.wait(self.queue.add_scores(SCORER, self.scorer_epoch, self.scored, *call))
            assert self.queue.counts() == before
        self.scored += 1

    @rule(most=st.integers(0, 4))
    def lose_the_scorer(self, most: int) -> None:
        if most:
            self.unscored(most)
        self.scores.close()
        self.new_scorer()

    @precondition(lambda self: self.lost)
    @rule()
    def score_as_a_lost_scorer(self) -> None:
        epoch, part = self.lost.pop()
        before = self.queue.counts()
        call = self.verdicts(part, [True] * len(part.number), epoch)
        with pytest.raises(FencedError):
            self.wait(self.queue.add_scores(SCORER, epoch, 10**6, *call))
        assert self.queue.counts() == before

    @precondition(lambda self: self.in_state("running"))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.finish_group(data.draw(st.sampled_from(self.in_state("running"))))

    @rule(commit=st.booleans())
    def go_on(self, commit: bool) -> None:
        """What a run without trouble does for a step, so that schedules get as far as the learner."""
        self.take("a", 0, 2 * self.per_step)
        for number in self.in_state("running")[: self.per_step]:
            self.finish_group(number)
        if not self.leased:
            self.lease()
        if self.leased and commit:
            self.commit(False)

    def finish_group(self, number: int) -> None:
        """All rows and verdicts that a running group lacks, unless it has yet to be issued again."""
        group = self.book[number]
        if group.attempt < group.floor:
            return
        missing = [(number, sample) for sample in range(self.size) if sample not in group.rows]
        if missing:
            frame, sequence = frame_of(len(missing), self.frames), self.sequence["a"]
            oldest = max(0, group.last_step - self.staleness)
            count = len(missing)
            rows = packed_rows(missing, [group.attempt] * count, [oldest] * count, STOP)
            self.wait(self.queue.accept("a", self.epoch["a"], sequence, frame, rows))
            self.frames, self.sequence["a"] = self.frames + 1, sequence + 1
            for place, (_, sample) in enumerate(missing):
                group.rows[sample] = BookedRow(frame, place, group.attempt, oldest)
            self.settle(number)
        while any(row.verdict is None for row in group.rows.values()):
            if not self.held:
                self.unscored(4)
            self.add_scores_valid()

    def add_scores_valid(self) -> None:
        part = self.held.pop()
        call = self.verdicts(part, [True] * len(part.number), self.scorer_epoch)
        self.wait(self.queue.add_scores(SCORER, self.scorer_epoch, self.scored, *call))
        self.scored += 1
        for (number, sample), reward in zip(keys_of(part), call[1].reward.tolist(), strict=True):
            row = self.book[number].rows[sample]
            if self.book[number].state == "running" and row.verdict is None:
                row.verdict = True, reward
            self.settle(number)

    @precondition(lambda self: self.book)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.book)))
        group = self.book[number]
        planned = {number for step, numbers in self.history.items() if step >= self.step for number in numbers}
        open_still = group.state in ("running", "ready") and number not in planned
        assert self.wait(self.queue.drop([number], "cancelled")) == ([number] if open_still else [])
        if open_still:
            group.state, group.replica = "cancelled", None

    @precondition(lambda self: any(group.rows for group in self.book.values()))
    @rule(data=st.data(), leased=st.booleans())
    def lose(self, data: st.DataObject, leased: bool) -> None:
        """A frame or two can be read nowhere any more: what is trained stays, the rest is generated again."""
        frames = sorted(
            {row.frame for group in self.book.values() for row in group.rows.values()}, key=lambda f: f.offset
        )
        gone = data.draw(st.lists(st.sampled_from(frames), min_size=1, max_size=2, unique=True))
        numbers = self.hit_by(gone, leased)
        rows = sum(len(self.book[number].rows) for number in numbers)
        assert self.wait(self.queue.lose(gone, leased)) == (len(numbers), rows)
        self.lose_rows(numbers)

    # The learner

    @precondition(lambda self: not self.leased)
    @rule()
    def lease(self) -> None:
        lease = self.attempt(self.queue.lease(self.step))
        if lease is None:
            assert self.step not in self.history
            return
        self.leased = sorted(set(lease.group.tolist()))
        assert len(self.leased) == self.per_step
        assert self.leased == self.history.get(self.step, self.leased)
        assert (np.maximum(0, self.step - lease.oldest_step) <= self.staleness).all()
        expected = [(number, sample) for number in self.leased for sample in range(self.size)]
        assert list(zip(lease.group.tolist(), lease.sample_index.tolist(), strict=True)) == expected
        for place, (number, sample) in enumerate(expected):
            row = self.book[number].rows[sample]
            assert row.verdict is not None
            assert lease.frames[lease.frame_index[place]] == row.frame
            assert (lease.row[place], lease.oldest_step[place]) == (row.row, row.oldest)
            assert lease.valid[place] == row.verdict[0]
            assert lease.rewards[place] == row.verdict[1] if row.verdict[0] else np.isnan(lease.rewards[place])
        for number in self.leased:
            assert self.book[number].state == "ready"
            assert self.book[number].last_step >= self.step
            self.book[number].state = "leased"

    @precondition(lambda self: self.leased)
    @rule(again=st.booleans())
    def commit(self, again: bool) -> None:
        for _ in range(1 + again):
            self.wait(self.queue.commit(self.step))
        for number in self.leased:
            self.book[number].state = "trained"
        self.history[self.step] = self.leased
        self.leased = []
        self.step += 1

    @rule(back=st.integers(0, 2))
    def cover(self, back: int) -> None:
        self.covered = max(self.covered, self.step - back)
        self.wait(self.queue.covered(self.covered))

    @rule(back=st.integers(-2, 3))
    def resume_from(self, back: int) -> None:
        """The learner alone starts again, from a checkpoint before or after the step that comes next."""
        step, incarnation = max(0, self.step - back), self.queue.incarnation
        if not self.covered <= step <= max(self.step, len(self.history)):
            gone = step < self.covered
            refused = (
                (StartAgainError, "in its log") if gone else (ComponentError, "never trained is none of this run's")
            )
            with pytest.raises(refused[0], match=refused[1]):
                self.wait(self.queue.resume_from(step))
            return
        assert self.wait(self.queue.resume_from(step)) == incarnation + 1
        self.go_to(step)

    # Its own end

    @rule(crash=st.booleans(), torn=st.integers(0, 60), back=st.integers(-2, 2), replaced=st.booleans())
    def end_and_return(self, crash: bool, torn: int, back: int, replaced: bool) -> None:
        """Closed, or copied as `kill -9` leaves it, with the head of a commit that did not finish; then opened anew,
        for the checkpoint that the queue knows, for an older one, or for one that it was not told of. The replicas
        are replaced too, or go on."""
        if crash:
            self.lives += 1
            after = self.folder / str(self.lives)
            shutil.copytree(self.run, after)
        self.scores.close()
        self.queue.close()
        if crash:
            self.run = after
            newest = max((after / LEDGER_DIR).iterdir())
            data = newest.read_bytes()
            frames = list(read_frames(memoryview(data), str(newest)))
            begun = pack_frame(b"of a commit that never came back", len(frames))[:torn]
            newest.write_bytes(data[: frames[-1].end] + begun + bytes(2**12))
        incarnation, step = self.queue.incarnation, min(max(0, self.covered - back), len(self.history))
        self.held, self.lost = [], []
        self.open(step)
        assert self.queue.incarnation == incarnation + 1
        for group in self.book.values():
            group.replica = None
        self.go_to(step)
        self.covered = step
        self.what_was_found_is_what_the_book_says(step)
        self.calls = {}
        for replica in REPLICAS if replaced else []:
            self.epoch[replica] = self.wait(self.queue.next_epoch(replica))
            self.sequence[replica] = 0

    def what_was_found_is_what_the_book_says(self, step: int) -> None:
        again = [number for trained, numbers in self.history.items() if trained >= step for number in numbers]
        waiting = [number for state in ("running", "ready") for number in self.in_state(state)]
        missing = [self.size - len(self.book[number].rows) for number in self.in_state("running")]
        found = self.queue.found()
        assert found.step == step
        assert found.steps_again == len({trained for trained in self.history if trained >= step})
        assert found.rows_again == sum(len(self.book[number].rows) for number in again)
        assert found.rows_again + found.rows_waiting == sum(len(self.book[number].rows) for number in waiting)
        assert (found.groups_again, found.rollouts_again) == (sum(map(bool, missing)), sum(missing))
        assert (found.data_changed, found.rows_discarded) == (False, 0)

    @rule()
    def look_inside(self) -> None:
        """The ledger's own columns, and the books of a queue that is not up, say what the book says."""
        facts = ledger_facts(read_ledger(self.run / LEDGER_DIR))
        names = [(row["number"], row["sample_index"], row["attempt"]) for row in facts.rows]
        booked = {
            (number, sample, row.attempt): (group, row)
            for number, group in self.book.items()
            for sample, row in group.rows.items()
        }
        assert sorted(names) == sorted([*booked, *self.rows_gone])
        verdicts = [booked[name][1].verdict if name in booked else None for name in names]
        states = facts.states(np.array([verdict is not None and verdict[0] for verdict in verdicts], np.bool_))
        for name, place, frame, state in zip(names, facts.rows["row"], facts.frame, states, strict=True):
            if name in self.rows_gone:
                assert RowState(state) is RowState.WITHDRAWN
                continue
            group, row = booked[name]
            assert (facts.frames[frame], place) == (row.frame, row.row)
            told = {"leased": "ready", "cancelled": "dropped", "reward_failed": "dropped"}.get(group.state, group.state)
            assert RowState(state).name.lower() == told, name
        counts, *_ = last_books(self.run, self.settings(), Order())
        expected = [group.state for group in self.book.values()]
        assert counts.groups_trained == expected.count("trained")
        assert counts.groups_ready == expected.count("ready") + expected.count("leased")
        assert counts.groups_running == expected.count("running")
        assert (counts.next_step, counts.groups_issued) == (self.step, len(expected))

    # After every rule

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "queue"):
            return
        counts = self.queue.counts()
        states = [group.state for group in self.book.values()]
        dropped = {state: states.count(state) for state in states if state in ("cancelled", "reward_failed")}
        assert counts.groups_issued == len(states)
        assert counts.groups_dropped == dropped
        assert counts.next_step == self.step
        for state in ("running", "ready", "leased", "trained"):
            assert getattr(counts, f"groups_{state}") == states.count(state), state
        rows = dict.fromkeys(("ready", "leased", "trained"), 0)
        for group in self.book.values():
            if group.state in rows:
                rows[group.state] += len(group.rows)
        for state, count in rows.items():
            assert getattr(counts, f"rows_{state}") == count, state
        running = [self.book[number] for number in self.in_state("running")]
        scored = sum(row.verdict is not None for group in running for row in group.rows.values())
        assert counts.rows_pending == sum(self.size - len(group.rows) for group in running)
        assert (counts.rows_scored, counts.rows_complete) == (scored, len(self.unscored_rows()))
        orphans = [group for group in running if group.replica is None and len(group.rows) < self.size]
        assert counts.groups_orphaned == len(orphans)

    @invariant()
    def every_token_is_somewhere(self) -> None:
        if not hasattr(self, "queue"):
            return
        counts = self.queue.counts()
        accepted = sum(len(group.rows) for group in self.book.values())
        assert counts.tokens_accepted == TOKENS * (accepted + len(self.rows_gone))
        assert counts.rows_lost == len(self.rows_gone)
        assert counts.tokens_accepted == (
            counts.tokens_queued + counts.tokens_leased + counts.tokens_trained + counts.tokens_dropped
        )

    @invariant()
    def a_group_is_trained_once_in_the_history_that_counts(self) -> None:
        if not hasattr(self, "queue"):
            return
        trained = [number for step in range(self.step) for number in self.history[step]]
        assert len(trained) == len(set(trained))
        assert sorted(trained) == sorted(self.in_state("trained"))


pytestmark = pytest.mark.timeout(900)
"""A failing schedule is made smaller first, which takes minutes."""
QueueBeside.TestCase.settings = settings(max_examples=scaled(1500), stateful_step_count=50, deadline=None)
test_invariants_1_2_3_11_hold_beside_a_plain_book = QueueBeside.TestCase
