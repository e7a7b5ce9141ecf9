"""Pieces of unfinished rollouts: joined they are what was cut, the newest attempt counts, age decides what is used."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrl.scheduling.partial_rollouts import PartialChains, cut, cut_from, join, usable
from streamrl.types import PartialTokens, Ticket, Version, VersionSpan

ROLLOUT = "g.0/1"


def tokens(*, count: int, start: int = 0, steps: dict[int, int] | None = None, mark: int = 0) -> PartialTokens:
    """`count` tokens from `start` on. steps: the version's step by the token at which it begins; step 5 without."""
    ids = np.arange(start, start + count, dtype=np.int32) + mark
    spans = tuple(VersionSpan(at, Version(0, step)) for at, step in (steps or {start: 5}).items())
    return PartialTokens(ROLLOUT, start, ids, (-ids / 7).astype(np.float32), spans)


def ticket(*, last_step: int, attempt: int = 1) -> Ticket:
    return Ticket(3, 4, 0, attempt, last_step)


def same(one: PartialTokens | None, other: PartialTokens | None) -> bool:
    assert one is not None
    assert other is not None
    return (
        (one.request_id, one.start, one.version_spans) == (other.request_id, other.start, other.version_spans)
        and one.token_ids.tolist() == other.token_ids.tolist()
        and one.logprobs.tobytes() == other.logprobs.tobytes()
    )


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[PartialTokens, list[int]]:
    """A rollout of several versions, and places to cut it at."""
    count = draw(st.integers(1, 40))
    begins = sorted({0, *draw(st.lists(st.integers(0, count - 1), max_size=5))})
    whole = tokens(count=count, steps={at: 5 + place for place, at in enumerate(begins)})
    return whole, sorted(set(draw(st.lists(st.integers(1, count), max_size=6))))


@given(case=rollouts(), data=st.data())
def test_pieces_in_order_give_the_rollout_back_whatever_comes_twice(case, data) -> None:
    whole, cuts = case
    bounds = [0, *cuts, whole.end]
    chains = PartialChains()
    for first, last in pairwise(bounds):
        if first == last:
            continue
        piece = cut(cut_from(whole, first), last)
        assert piece is not None
        assert (piece.start, piece.end) == (first, last)
        chains.add(0, piece)
        if data.draw(st.booleans()):
            again = cut(cut_from(whole, data.draw(st.integers(0, last - 1))), last)
            assert again is not None
            chains.add(0, again)
    assert same(chains.newest(ROLLOUT, 1), whole)


@given(case=rollouts())
def test_a_piece_has_the_versions_of_its_own_tokens(case) -> None:
    whole, cuts = case
    of_token = np.zeros(whole.end, np.int64)
    for span in whole.version_spans:
        of_token[span.start :] = span.version.step
    for stop in cuts:
        head = cut(whole, stop)
        assert head is not None
        assert [span.version.step for span in head.version_spans] == sorted(set(of_token[:stop].tolist()))
    for start in [one for one in cuts if one < whole.end]:
        rest = cut_from(whole, start)
        assert rest.version_spans[0].start == start
        assert [span.version.step for span in rest.version_spans] == sorted(set(of_token[start:].tolist()))


def test_what_lies_behind_a_gap_is_of_no_use() -> None:
    chains = PartialChains()
    for piece in (tokens(count=4), tokens(count=4, start=8), tokens(count=4, start=12)):
        chains.add(0, piece)
    assert same(chains.newest(ROLLOUT, 1), tokens(count=4))
    assert join(tokens(count=4), tokens(count=2, start=5)) is None


def test_a_journal_without_its_beginning_is_of_no_use() -> None:
    chains = PartialChains()
    chains.add(0, tokens(count=4, start=4))
    assert chains.newest(ROLLOUT, 1) is None


def test_a_piece_from_the_beginning_replaces_what_was_there() -> None:
    chains = PartialChains()
    chains.add(0, tokens(count=9, mark=100))
    chains.add(0, tokens(count=4))
    assert same(chains.newest(ROLLOUT, 1), tokens(count=4))


def test_the_newest_earlier_attempt_counts_and_no_other_rollout() -> None:
    chains = PartialChains()
    for attempt, count in ((2, 3), (0, 9), (1, 5), (3, 7)):
        chains.add(attempt, tokens(count=count, mark=attempt))
    assert same(chains.newest(ROLLOUT, 3), tokens(count=3, mark=2))
    assert same(chains.newest(ROLLOUT, 2), tokens(count=5, mark=1))
    assert chains.newest(ROLLOUT, 0) is None
    assert chains.newest("g.0/2", 3) is None
    chains.drop(ROLLOUT)
    assert chains.newest(ROLLOUT, 3) is None


@pytest.mark.parametrize(("last_step", "goes_on"), [(7, True), (8, False)])
def test_invariant_3_tokens_too_old_for_the_ticket_are_not_used(last_step: int, goes_on: bool) -> None:
    """The oldest are of step 5: with a staleness of 2 they may be trained at step 7."""
    partial = tokens(count=6, steps={0: 5, 3: 6})
    found = usable(partial, ticket(last_step=last_step), Version(0, 7), 2, False)
    assert (found is not None) == goes_on


def test_invariant_6_tokens_of_a_version_newer_than_the_one_that_serves_are_left_out() -> None:
    partial = tokens(count=6, steps={0: 5, 3: 6})
    found = usable(partial, ticket(last_step=7), Version(0, 5), 2, False)
    assert same(found, tokens(count=3))
    assert usable(partial, ticket(last_step=7), Version(0, 4), 2, False) is None


@pytest.mark.parametrize(
    ("serving", "goes_on"), [(Version(0, 5), True), (Version(1, 5), False), (Version(0, 6), False)]
)
def test_where_rollouts_are_of_one_version_only_the_one_that_serves_counts(serving: Version, goes_on: bool) -> None:
    found = usable(tokens(count=6), ticket(last_step=5), serving, 0, True)
    assert (found is not None) == goes_on
