"""Spans that end one after the other become trees: each below the one around it."""

import random

from streamrl.observability.timeline import Span
from streamrl.observability.trackers.span_trees import HOLD_NS, TrackTrees, Tree, walk


def shape(tree: Tree) -> tuple:
    return (tree.span.name, *map(shape, tree.inside))


def of(*spans: tuple[str, int, int]) -> list[tuple]:
    trees = TrackTrees()
    for name, start, end in spans:
        trees.add(Span(name, start, end - start))
    return [shape(tree) for tree in trees.take_all()]


def test_phases_lie_in_their_step_in_the_order_in_which_they_ended() -> None:
    told = of(("wait", 0, 4), ("read", 5, 6), ("pack", 4, 7), ("step", 0, 8), ("wait", 8, 9), ("step", 8, 10))
    assert told == [("step", ("wait",), ("pack", ("read",))), ("step", ("wait",))]


def test_what_follows_another_span_is_not_inside_it() -> None:
    assert of(("a", 0, 5), ("b", 5, 9)) == [("a",), ("b",)]


def test_a_span_is_held_for_the_one_around_it_and_not_for_ever() -> None:
    trees = TrackTrees()
    trees.add(Span("early", 0, 10))
    trees.add(Span("late", HOLD_NS, 5))
    assert trees.take_old() == []
    trees.add(Span("later", HOLD_NS + 6, 10))
    assert [shape(tree) for tree in trees.take_old()] == [("early",)]
    assert [shape(tree) for tree in trees.take_all()] == [("late",), ("later",)]
    assert trees.take_all() == []


def test_every_span_of_random_nesting_is_there_once_below_one_that_is_around_it() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    spans: list[Span] = []

    def nest(start: int, end: int, depth: int) -> None:
        at = start
        while depth and at < end - 2 and source.random() < 0.7:
            begin = source.randrange(at, end - 1)
            stop = source.randrange(begin + 1, end)
            nest(begin, stop, depth - 1)
            at = stop
        spans.append(Span(f"{start}-{end}-{depth}", start, end - start))

    nest(0, 10**6, 6)
    trees = TrackTrees()
    for span in spans:
        trees.add(span)
    (root,) = trees.take_all()
    pairs = list(walk(root))
    assert sorted(tree.span.name for tree, _ in pairs) == sorted(span.name for span in spans)
    for tree, parent in pairs:
        if parent is not None:
            assert parent.span.start_ns <= tree.span.start_ns
            assert tree.end_ns <= parent.end_ns
