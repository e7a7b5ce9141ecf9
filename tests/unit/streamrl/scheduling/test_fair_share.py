"""Which stream has the next group."""

import random
import re
from collections import Counter

import pytest
from support.faults.fault_scale import SEED, replay

from streamrl.buffers.rows.names import PLAIN
from streamrl.config.schema.streams import STREAM_NAME, TASK, Share
from streamrl.scheduling.fair_share import StreamShares


def test_two_streams_that_always_have_prompts_share_by_weight() -> None:
    shares = StreamShares({"a": Share(3.0), "b": Share(1.0)})
    given = Counter(shares.give(["a", "b"]) for _ in range(400))
    assert given == {"a": 300, "b": 100}


def test_in_every_stretch_no_stream_is_a_whole_group_from_its_share() -> None:
    shares = StreamShares({"a": Share(2.0), "b": Share(0.5), TASK: Share()})
    given: Counter[str | None] = Counter()
    for count in range(1, 500):
        given[shares.give(["a", "b", TASK])] += 1
        for name, weight in (("a", 2.0), ("b", 0.5), (TASK, 1.0)):
            assert abs(given[name] - count * weight / 3.5) < 2


def test_a_stream_without_prompts_saves_nothing_up() -> None:
    shares = StreamShares({})
    for _ in range(1000):
        assert shares.give([TASK]) == TASK
    given = Counter(shares.give([TASK, "late"]) for _ in range(100))
    assert abs(given[TASK] - given["late"]) <= 2


def test_what_one_leaves_free_is_shared_by_the_others_and_not_asked_back() -> None:
    shares = StreamShares({"a": Share(8.0)})
    for _ in range(64):
        shares.give(["b", "c"])
    given = Counter(shares.give(["a", "b", "c"]) for _ in range(100))
    assert abs(given["a"] - 80) <= 1


def test_a_higher_priority_goes_first_whatever_the_weights() -> None:
    shares = StreamShares({"urgent": Share(0.01, priority=1), TASK: Share(100.0)})
    assert [shares.give([TASK, "urgent"]) for _ in range(5)] == ["urgent"] * 5
    assert shares.give([TASK]) == TASK


def test_a_stream_of_weight_0_has_nothing_even_alone() -> None:
    shares = StreamShares({TASK: Share(0.0)})
    assert shares.give([TASK]) is None
    assert shares.give([TASK, "a"]) == "a"
    shares.charge(TASK)  # of a ledger from before the weight was 0
    assert shares.give([TASK]) is None


def test_nobody_waits_nobody_gets() -> None:
    assert StreamShares({}).give([]) is None


@pytest.mark.parametrize("place", range(5))
def test_a_past_that_is_charged_again_leads_to_the_same_future(place: int) -> None:
    print(replay(place))
    chance = random.Random(SEED + place)
    settings = {name: Share(chance.uniform(0.1, 5.0), chance.randrange(2)) for name in "abcd"}
    first, again = StreamShares(settings), StreamShares(settings)
    for _ in range(200):
        waiting = chance.sample("abcd", chance.randrange(1, 5))
        again.charge(first.give(waiting) or "")
    assert [first.give("abcd") for _ in range(50)] == [again.give("abcd") for _ in range(50)]


@pytest.mark.parametrize("name", ["a", "_", "0.-", "x" * 64, "", ".", "..", "-x", "x" * 65, "a b", "a/b", "\u00e9"])
def test_a_stream_may_be_called_only_what_a_row_of_the_log_may_hold(name: str) -> None:
    may = re.fullmatch(STREAM_NAME, name) is not None
    assert may == (len(name) <= 64 and PLAIN.fullmatch(name) is not None)
