"""The replay index under random schedules, against a plain model."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.queue.small_index import (
    ERROR,
    LENGTH,
    ROLLOUT_BYTES,
    STOP,
    accept,
    assert_books_close,
    make_index,
    score,
)


class Books(RuleBasedStateMachine):
    """Random schedules of everything that may happen, beside a plain dict of what every group must be."""

    @initialize(size=st.integers(1, 3), per_step=st.integers(1, 3), staleness=st.integers(0, 2))
    def start(self, size, per_step, staleness):
        self.size, self.per_step, self.staleness = size, per_step, staleness
        budget = (staleness + 4) * per_step * size * ROLLOUT_BYTES
        self.index = make_index(group_size=size, groups_per_step=per_step, max_staleness=staleness, byte_budget=budget)
        self.model: dict[int, dict] = {}
        self.step = 0
        self.leased: list[int] = []
        self.tokens = 0
        self.history: dict[int, list[int]] = {}

    def running(self):
        return [n for n, group in self.model.items() if group["state"] == "running"]

    def pick(self, data):
        """A group, most often one that runs, and one of its samples."""
        anywhere = data.draw(st.integers(0, 9)) == 0
        numbers = sorted(self.model) if anywhere or not self.running() else self.running()
        return data.draw(st.sampled_from(numbers)), data.draw(st.integers(0, self.size - 1))

    def settle(self, number):
        group = self.model[number]
        if len(group["rows"]) == self.size and None not in group["rows"].values():
            enough = sum(group["rows"].values()) >= min(2, self.size)
            group["state"] = "ready" if enough else "dropped"

    @rule(replica=st.sampled_from(["a", "b"]), lag=st.integers(0, 1), room=st.integers(1, 4))
    def issue(self, replica, lag, room):
        serving = max(0, self.step - lag)
        for ticket in self.index.issue(replica, serving, room):
            group = self.model.get(ticket.number)
            if group is None:
                assert ticket.number == len(self.model)
                group = {"state": "running", "rows": {}, "floor": 0, "attempt": -1}
                self.model[ticket.number] = group
            assert ticket.attempt == group["attempt"] + 1
            assert ticket.last_step <= serving + self.staleness
            if not group["rows"]:
                group["floor"] = ticket.attempt
            group.update(replica=replica, attempt=ticket.attempt, last_step=ticket.last_step)
            if ticket.attempt == 0:
                started = sum(group["state"] != "dropped" for group in self.model.values())
                assert started <= (self.staleness + serving + 1) * self.per_step

    @precondition(lambda self: self.model)
    @rule(data=st.data(), finish=st.sampled_from([STOP, STOP, STOP, LENGTH, ERROR]))
    def accept(self, data, finish):
        number, sample = self.pick(data)
        group = self.model[number]
        oldest = max(0, group["last_step"] - self.staleness)
        kept = accept(self.index, [(number, sample)], finish=finish, attempt=group["attempt"], oldest=oldest)
        new = group["state"] == "running" and sample not in group["rows"]
        assert len(kept) == new
        if new:
            self.tokens += 3
            group["rows"][sample] = False if finish == ERROR else None
            group.setdefault("tries", {})[sample] = group["attempt"]
            self.settle(number)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), valid=st.sampled_from([True, True, True, False]))
    def score(self, data, valid):
        number, sample = self.pick(data)
        group = self.model[number]
        attempt = group.get("tries", {}).get(sample, 0)
        kept = score(self.index, [(number, sample)], valid=[valid], attempt=attempt)
        new = group["state"] == "running" and group["rows"].get(sample, "absent") is None
        assert len(kept) == new
        if new:
            group["rows"][sample] = valid
            self.settle(number)

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def finish(self, data):
        number = data.draw(st.sampled_from(self.running()))
        group = self.model[number]
        oldest = max(0, group["last_step"] - self.staleness)
        missing = [(number, sample) for sample in range(self.size) if sample not in group["rows"]]
        self.tokens += 3 * len(missing)
        if missing:
            kept = accept(self.index, missing, attempt=group["attempt"], oldest=oldest)
            assert len(kept) == len(missing)
        for _, sample in missing:
            group["rows"][sample] = None
            group.setdefault("tries", {})[sample] = group["attempt"]
        for sample in [sample for sample, value in group["rows"].items() if value is None]:
            assert len(score(self.index, [(number, sample)], attempt=group["tries"][sample])) == 1
            group["rows"][sample] = True
        self.settle(number)

    @rule(replica=st.sampled_from(["a", "b"]))
    def release(self, replica):
        lost = self.index.release(replica)
        for number in lost:
            assert self.model[number]["replica"] == replica
            assert self.model[number]["state"] == "running"
            self.model[number]["replica"] = None

    @precondition(lambda self: self.running())
    @rule(data=st.data())
    def drop(self, data):
        number = data.draw(st.sampled_from(self.running()))
        assert self.index.drop(number, "cancelled")
        assert not self.index.drop(number, "cancelled")
        self.model[number]["state"] = "dropped"

    @precondition(lambda self: not self.leased)
    @rule()
    def lease(self):
        lease = self.index.lease(self.step)
        if lease is None:
            return
        numbers = sorted(set(lease.group.tolist()))
        assert len(numbers) == self.per_step
        for number in numbers:
            assert self.model[number]["state"] == "ready"
            assert self.model[number]["last_step"] >= self.step
            self.model[number]["state"] = "leased"
        assert (np.maximum(0, self.step - lease.oldest_step) <= self.staleness).all()
        self.leased = numbers
        assert numbers == self.history.get(self.step, numbers)

    @precondition(lambda self: self.leased)
    @rule()
    def commit(self):
        assert self.index.commit(self.step) == self.leased
        for number in self.leased:
            self.model[number]["state"] = "trained"
        self.history[self.step] = self.leased
        self.leased = []
        self.step += 1

    @rule(back=st.integers(0, 2))
    def cover(self, back):
        self.index.cover(max(self.index._steps.covered_step, self.step - back))

    @rule(back=st.integers(0, 2))
    def resume(self, back):
        step = max(self.index._steps.covered_step, self.step - back)
        self.index.go_to(step)
        for number in self.leased:
            self.model[number]["state"] = "ready"
        for later in range(step, self.step):
            for number in self.history[later]:
                self.model[number]["state"] = "ready"
        self.leased, self.step = [], step

    @invariant()
    def books_close(self):
        if not hasattr(self, "model"):
            return
        counts = self.index.counts()
        assert_books_close(counts)
        states = [group["state"] for group in self.model.values()]
        assert counts.groups_issued == len(states)
        for state in ("running", "ready", "leased", "trained"):
            assert getattr(counts, f"groups_{state}") == states.count(state)
        assert sum(counts.groups_dropped.values()) == states.count("dropped")
        assert counts.tokens_accepted == self.tokens
        running = [group for group in self.model.values() if group["state"] == "running"]
        assert counts.rows_pending == sum(self.size - len(group["rows"]) for group in running)
        assert counts.bytes_reserved == counts.rows_pending * ROLLOUT_BYTES
        covered = self.index._steps.covered_step
        gone = {number for step in range(covered) for number in self.history[step]}
        held = [g for n, g in self.model.items() if g["state"] != "dropped" and n not in gone]
        assert counts.bytes_held == 10 * sum(len(group["rows"]) for group in held)
        assert counts.rows_scored == sum(value is not None for group in running for value in group["rows"].values())


Books.TestCase.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
test_invariant_11_the_books_close_on_any_schedule = Books.TestCase
