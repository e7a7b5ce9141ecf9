"""How many groups a replica takes, by what its engine says of its KV cache."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrl.scheduling.replica_capacity import CROWDED, FULL, ReplicaCapacity
from streamrl.types import ServerLoad

SLOTS, GROUP = 64, 4


def room() -> ReplicaCapacity:
    return ReplicaCapacity(SLOTS, GROUP)


def full(running: int) -> ServerLoad:
    return ServerLoad(running=running, waiting=0, kv_use=FULL)


CALM = ServerLoad(running=10, waiting=0, kv_use=FULL - 0.01)


def test_an_engine_with_room_for_each_slot_is_filled_to_its_slots_a_quarter_at_a_time() -> None:
    mine = room()
    mine.update(None)
    assert [mine.groups(in_flight) for in_flight in (0, 16, 48, 49, 64)] == [16, 12, 4, 0, 0]


def test_a_group_that_is_larger_than_the_slots_is_taken_alone() -> None:
    mine = ReplicaCapacity(slots=4, group_size=8)
    assert [mine.groups(in_flight) for in_flight in (0, 1, 8)] == [1, 0, 0]


@pytest.mark.parametrize(
    ("load", "taken"),
    [
        (CALM, 12),
        (full(16), 0),
        (ServerLoad(running=8, waiting=8, kv_use=CROWDED), 0),
        (ServerLoad(running=8, waiting=8, kv_use=CROWDED - 0.01), 12),  # their prompts are read next
    ],
)
def test_nothing_is_taken_while_the_cache_is_full_or_requests_wait_for_it(load: ServerLoad, taken: int) -> None:
    mine = room()
    mine.update(load)
    assert mine.groups(16) == taken


def test_a_replica_with_nothing_to_do_takes_whatever_the_server_said_last() -> None:
    mine = room()
    mine.update(full(0))
    assert mine.groups(0) == 1


def test_a_full_cache_lowers_the_limit_to_what_runs_however_often_it_is_told() -> None:
    mine = room()
    for _ in range(3):
        mine.update(ServerLoad(running=40, waiting=24, kv_use=0.95))
    mine.update(CALM)
    assert mine.limit == 40
    assert [mine.groups(in_flight) for in_flight in (0, 20, 40, 41)] == [10, 5, 0, 0]


def test_a_lowered_limit_grows_by_a_quarter_of_the_slots_while_all_requests_end_once_and_to_the_slots_at_most() -> None:
    mine = room()
    mine.update(full(32))
    mine.ended(32)
    assert mine.limit == 32, "not while the cache is full"
    mine.update(CALM)
    for _ in range(32):
        mine.ended(1)
    assert 44 <= mine.limit <= 48
    mine.ended(1000)
    assert mine.limit == SLOTS


@given(
    st.lists(
        st.one_of(
            st.integers(1, 20),
            st.builds(ServerLoad, st.integers(0, 200), st.integers(0, 200), st.floats(0.0, 1.0)),
        )
    ),
    st.integers(1, 200),
    st.integers(1, 32),
    st.integers(0, 200),
)
def test_never_more_than_the_slots_and_never_nothing_without_work(
    news: list[int | ServerLoad], slots: int, group_size: int, in_flight: int
) -> None:
    mine = ReplicaCapacity(slots, group_size)
    for one in news:
        if isinstance(one, ServerLoad):
            mine.update(one)
        else:
            mine.ended(one)
    groups = mine.groups(in_flight)
    assert groups >= 0
    assert in_flight + groups * group_size <= max(slots, group_size, in_flight)
    assert mine.groups(0) >= 1
    assert not (in_flight and mine.tight and groups)
