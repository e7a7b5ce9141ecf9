"""A checkpoint before its time: the learner never waits for room that only a checkpoint would give."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.rows.records import ACCEPTED, SCORED, QueueSettings
from streamrl.clock import VirtualClock
from streamrl.types import FrameRef

ROLLOUT_BYTES = 1000


class Order:
    def at(self, n: int, /) -> tuple[int, int]:
        return divmod(n, 5)


def make_index(*, group_size: int, groups_per_step: int, max_staleness: int, steps: float) -> ReplayIndex:
    """An index whose budget holds `steps` steps of rollouts at their worst."""
    return ReplayIndex(
        QueueSettings(
            group_size=group_size,
            groups_per_step=groups_per_step,
            max_staleness=max_staleness,
            byte_budget=int(steps * groups_per_step * group_size * ROLLOUT_BYTES),
            rollout_bytes=ROLLOUT_BYTES,
        ),
        Order(),
        VirtualClock(),
    )


def finish(index: ReplayIndex, number: int, group_size: int, row_bytes: int) -> None:
    """A group's rollouts, each of so many bytes, with their scores."""
    rows, names = np.zeros(group_size, ACCEPTED), np.zeros(group_size, SCORED)
    for sample in range(group_size):
        rows[sample] = (number, sample, 0, 0, sample, 4, 3, number, 0)
        names[sample] = (number, sample, 0, 0, sample)
    rows["oldest_step"] = 10**6
    index.accept(FrameRef("queue/completions/r-0-0.arrow", 0, group_size * row_bytes, group_size, 0, 0), rows)
    index.score(names, np.ones(group_size, np.bool_), np.arange(group_size, dtype=np.float64))


@given(
    max_staleness=st.integers(0, 4),
    groups_per_step=st.integers(1, 5),
    group_size=st.integers(1, 3),
    spare_steps=st.floats(0, 3),
    sizes=st.lists(st.integers(1, ROLLOUT_BYTES), min_size=1, max_size=40),
)
def test_invariant_9_with_the_least_budget_that_is_allowed_the_learner_always_gets_its_next_step(
    max_staleness: int, groups_per_step: int, group_size: int, spare_steps: float, sizes: list[int]
) -> None:
    index = make_index(
        group_size=group_size,
        groups_per_step=groups_per_step,
        max_staleness=max_staleness,
        steps=max_staleness + 2 + spare_steps,
    )
    done = 0
    for step in range(30):
        # The replica follows the learner at once, and each rollout ends at once.
        while tickets := index.issue("r", step, 100):
            for ticket in tickets:
                finish(index, ticket.number, group_size, sizes[done % len(sizes)])
                done += 1
        counts = index.counts()
        assert counts.bytes_trained <= counts.bytes_held <= counts.byte_budget
        assert index.lease(step) is not None, f"step {step}: no room for its rows: {counts}"
        index.commit(step)
        if index.checkpoint_wanted:
            index.cover(step + 1)
            assert index.counts().bytes_trained == 0
            assert not index.checkpoint_wanted


def test_a_checkpoint_is_wanted_at_seventy_percent_of_a_large_budget() -> None:
    index = make_index(group_size=1, groups_per_step=1, max_staleness=2, steps=100)
    wanted = []
    for step in range(100):
        (ticket,) = index.issue("r", step, 1)
        finish(index, ticket.number, 1, ROLLOUT_BYTES)
        index.lease(step)
        index.commit(step)
        wanted.append(index.checkpoint_wanted)
        if len(wanted) == 80:
            break
    assert wanted.index(True) == 70
    index.go_to(40)
    assert index.counts().bytes_trained == 40 * ROLLOUT_BYTES


@given(
    max_staleness=st.integers(0, 4),
    groups_per_step=st.integers(1, 5),
    group_size=st.integers(1, 3),
    stops=st.lists(st.integers(0, 29), max_size=3),
    sizes=st.lists(st.integers(1, ROLLOUT_BYTES), min_size=1, max_size=40),
)
def test_invariant_9_a_learner_that_stops_fills_the_queue_within_its_budget_and_finds_its_rows_when_it_goes_on(
    max_staleness: int, groups_per_step: int, group_size: int, stops: list[int], sizes: list[int]
) -> None:
    index = make_index(
        group_size=group_size, groups_per_step=groups_per_step, max_staleness=max_staleness, steps=max_staleness + 2
    )
    done = 0
    for step in range(30):
        # Replicas take and finish whatever they are given, until there is nothing more while the learner stands still.
        while tickets := index.issue("r", step, 100):
            for ticket in tickets:
                finish(index, ticket.number, group_size, sizes[done % len(sizes)])
                done += 1
            if step not in stops:
                break
        assert index.counts().bytes_held <= index.counts().byte_budget
        assert index.lease(step) is not None, f"step {step}: {index.counts()}"
        index.commit(step)
        if index.checkpoint_wanted:
            index.cover(step + 1)


@given(
    max_staleness=st.integers(0, 4),
    groups_per_step=st.integers(1, 5),
    group_size=st.integers(1, 3),
    steps_of_a_checkpoint=st.integers(1, 6),
    sizes=st.lists(st.integers(1, ROLLOUT_BYTES), min_size=1, max_size=40),
)
def test_invariant_9_a_long_checkpoint_keeps_rows_out_of_the_queue_and_never_those_that_were_admitted(
    max_staleness: int, groups_per_step: int, group_size: int, steps_of_a_checkpoint: int, sizes: list[int]
) -> None:
    index = make_index(
        group_size=group_size, groups_per_step=groups_per_step, max_staleness=max_staleness, steps=max_staleness + 2
    )
    under_way: tuple[int, int] | None = None
    done = step = 0
    while step < 30:
        for ticket in index.issue("r", step, 100):
            # It was admitted, so the bytes for it are there, whatever the checkpoint does.
            finish(index, ticket.number, group_size, sizes[done % len(sizes)])
            done += 1
        counts = index.counts()
        assert counts.bytes_held <= counts.byte_budget
        if index.lease(step) is None:
            # All that was admitted is in: the learner waits for the checkpoint, and for nothing else.
            assert under_way is not None, f"step {step}: {counts}"
            assert counts.groups_running == 0
            index.cover(under_way[0])
            under_way = None
            continue
        index.commit(step)
        step += 1
        if under_way is None and index.checkpoint_wanted:
            under_way = (step, step + steps_of_a_checkpoint)
        elif under_way is not None and step >= under_way[1]:
            index.cover(under_way[0])
            under_way = None
    assert done >= 30 * groups_per_step
