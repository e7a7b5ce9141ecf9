"""The way to a version: against trying every way, and the cases that have a name."""

import random
from collections.abc import Iterator

import pytest

from streamrl.types import Version
from streamrl.weights.delta.chain import ChainStep, plan_chain, version_before


def v(step: int, incarnation: int = 0) -> Version:
    return Version(incarnation, step)


def every_way(have, wanted, deltas, anchors) -> Iterator[list[ChainStep]]:
    """All sequences of different steps, each applicable where it stands, that end at `wanted`."""
    steps = [ChainStep("anchor", version, size) for version, size in anchors.items()]
    steps += [ChainStep("delta", version, size) for version, size in deltas.items()]

    def onward(at, used) -> Iterator[list[ChainStep]]:
        if at == wanted:
            yield used
        for step in steps:
            if step not in used and (step.kind == "anchor" or at == version_before(step.version)):
                yield from onward(step.version, [*used, step])

    return onward(have, [])


def moved(steps: list[ChainStep]) -> int:
    return sum(step.num_bytes for step in steps)


def test_the_plan_moves_as_few_bytes_as_any_way_and_takes_the_fewest_steps_for_them():
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    planned = 0
    for number in range(1500):
        chance = random.Random(f"{seed}/{number}")
        versions = [v(step, incarnation) for incarnation in (0, 1) for step in range(4)]
        deltas = {version: chance.randrange(5) for version in versions if chance.random() < 0.7}
        anchors = {version: chance.randrange(3, 12) for version in chance.sample(versions, chance.randrange(4))}
        have, wanted = chance.choice([None, *versions]), chance.choice(versions)
        ways = list(every_way(have, wanted, deltas, anchors))
        plan = plan_chain(have, wanted, deltas, anchors)
        if plan is None:
            assert ways == []
            continue
        assert plan in ways
        assert (moved(plan), len(plan)) == min((moved(way), len(way)) for way in ways)
        planned += len(plan) > 1
    assert planned > 50


def test_deltas_are_applied_from_what_is_there():
    deltas = {v(step): 2 for step in range(1, 9)}
    assert plan_chain(v(3), v(5), deltas, {v(4): 100}) == [ChainStep("delta", v(4), 2), ChainStep("delta", v(5), 2)]


def test_an_anchor_is_taken_when_the_deltas_to_it_are_more():
    deltas = {v(step): 30 for step in range(1, 9)}
    assert plan_chain(v(0), v(6), deltas, {v(5): 100}) == [ChainStep("anchor", v(5), 100), ChainStep("delta", v(6), 30)]


def test_an_incarnation_begins_with_an_anchor():
    deltas = {v(5): 1, v(5, 1): 1, v(6, 1): 1}
    assert plan_chain(v(4), v(6, 1), deltas, {}) is None
    steps = plan_chain(v(4), v(6, 1), deltas, {v(5, 1): 50})
    assert steps == [ChainStep("anchor", v(5, 1), 50), ChainStep("delta", v(6, 1), 1)]


@pytest.mark.parametrize(
    ("have", "wanted", "deltas", "anchors", "plan"),
    [
        (v(3), v(3), {}, {}, []),
        (None, v(3), {v(3): 1}, {}, None),
        (v(1), v(3), {v(3): 1}, {}, None),
        (v(4), v(3), {v(3): 1, v(4): 1}, {}, None),
        (None, v(3), {v(3): 4}, {v(2): 5, v(3): 9}, [ChainStep("anchor", v(3), 9)]),
        (v(4), v(3), {}, {v(3): 9}, [ChainStep("anchor", v(3), 9)]),
        (v(1), v(3), {v(2): 4, v(3): 5}, {v(3): 9}, [ChainStep("anchor", v(3), 9)]),
    ],
)
def test_each_case_with_a_name(have, wanted, deltas, anchors, plan):
    assert plan_chain(have, wanted, deltas, anchors) == plan


def test_the_version_before_is_of_the_same_incarnation():
    assert version_before(v(5, 2)) == v(4, 2)
