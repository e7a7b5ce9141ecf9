"""Choosing a batch by counts answers what the rule of `streamrl.scheduling.staleness` answers on all candidates."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.buffers.index.groups.group import Group
from streamrl.buffers.index.groups.ready import ReadyGroups
from streamrl.errors import ComponentError
from streamrl.scheduling.staleness import Candidate, select_batch

GROUPS = st.lists(st.integers(0, 9), max_size=24)
"""The last step of group 0, 1, ..."""


def group(number: int, last_step: int) -> Group:
    return Group(number, 0, last_step, 0.0, 0, number, number)


def answer(call: Callable[[], object]) -> object:
    try:
        return call()
    except ComponentError as error:
        return str(error)


@given(ready=GROUPS, running=GROUPS, gone=st.sets(st.integers(0, 23)), per_step=st.integers(1, 5), data=st.data())
@settings(max_examples=500, deadline=None)
def test_step_after_step_the_choice_is_that_of_the_rule(ready, running, gone, per_step, data) -> None:
    books = ReadyGroups()
    held = {number: group(number, last) for number, last in enumerate(ready)}
    for number in data.draw(st.permutations(sorted(held))):
        books.add(held[number])
    for number in sorted(gone & held.keys()):
        assert books.pop(number) is held.pop(number)
    in_flight = [Candidate(100 + number, last) for number, last in enumerate(running)]
    for step in range(data.draw(st.integers(0, 3)), 10):
        candidates = [one.candidate for one in held.values()]
        expected = answer(lambda s=step, c=candidates: select_batch(s, per_step, c, in_flight))
        chosen = answer(lambda s=step: books.choose(s, per_step, lambda: [one.last_step for one in in_flight]))
        if not isinstance(expected, list):
            assert chosen == expected
            assert sorted(one.number for one in books) == sorted(held)
            return
        assert isinstance(chosen, list)
        assert [one.number for one in chosen] == expected
        for number in expected:
            del held[number]
        assert len(books) == len(held)


def test_a_group_that_left_and_came_back_with_another_last_step_counts_once() -> None:
    books = ReadyGroups()
    for number in range(3):
        books.add(group(number, 5))
    books.pop(0)
    books.add(group(0, 7))
    chosen = books.choose(0, 2, list)
    assert chosen is not None
    assert [one.number for one in chosen] == [1, 2]
    assert [one.number for one in books] == [0]
    books.pop(0)
    books.add(group(0, 7))
    assert [one.number for one in books.choose(1, 1, list) or []] == [0]
    assert len(books) == 0


def test_what_is_not_here_cannot_be_taken_out() -> None:
    assert ReadyGroups().pop(3) is None


def test_groups_that_are_too_late_are_named() -> None:
    books = ReadyGroups()
    books.add(group(1, 0))
    with pytest.raises(ComponentError, match="cannot be trained in time"):
        books.choose(1, 1, list)
