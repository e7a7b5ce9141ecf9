"""One completion on its way: every token once, in order, with the version that sampled it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines.bytewise import BYTEWISE

from streamrl.gateway.openai.choice import Choice, joined, pieces
from streamrl.gateway.routing import Routes
from streamrl.gateway.token_updates import TokenUpdate

SPANS = [(0, 0, 1), (3, 0, 2), (9, 1, 2)]


def tokens(count: int) -> tuple[list[int], list[float]]:
    return [40 + i % 20 for i in range(count)], [-0.5 - i for i in range(count)]


def news(start: int, stop: int, *, reason: str = "", count: int = 12) -> TokenUpdate:
    ids, logprobs = tokens(count)
    ends = [*(span[0] for span in SPANS[1:]), count]
    spans = [
        (max(start, one[0]), *one[1:]) for one, end in zip(SPANS, ends, strict=True) if one[0] < stop and end > start
    ]
    return TokenUpdate("r", start, ids[start:stop], logprobs[start:stop], spans, reason)


@given(st.integers(0, 12), st.integers(1, 5), st.randoms(use_true_random=False))
def test_however_it_is_told_a_choice_has_each_token_once_with_its_version(
    told: int, most: int, cuts: random.Random
) -> None:
    choice, deltas, at = Choice(0, BYTEWISE, ()), [], 0
    while at < told:
        stop = cuts.randint(at + 1, told)
        deltas += [choice.take(one) for one in pieces(news(at, stop), most)]
        at = stop
    deltas += [choice.take(one) for one in pieces(news(0, 12, reason="length"), most)]
    whole = joined(deltas)
    assert (whole.token_ids, whole.logprobs) == tokens(12)
    assert whole.spans == SPANS
    assert whole.offsets == list(range(12))
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["length"]
    assert choice.finish_reason == deltas[-1].finish_reason == "length"
    assert all(delta.spans[0][0] == delta.start for delta in deltas if delta.token_ids)


def test_what_begins_anew_keeps_nothing_of_before() -> None:
    choice = Choice(0, BYTEWISE, ("\x00",))
    choice.take(news(0, 5))
    choice.begin()
    delta = choice.take(news(0, 12, reason="stop"))
    assert (delta.start, delta.token_ids, delta.spans) == (0, tokens(12)[0], SPANS)


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_request_that_the_engine_gives_up_is_an_error_and_no_answer(reason: str) -> None:
    choice = Choice(0, BYTEWISE, ())
    (one,) = pieces(TokenUpdate("r", 0, [], [], [], reason, "why"), 4)
    assert choice.take(one).token_ids == []
    assert (choice.error, choice.finish_reason, choice.ended) == ("why", "", True)


def test_the_replica_that_owes_least_is_chosen_and_one_that_left_never() -> None:
    routes = Routes()
    assert routes.choose() is None
    for name in ("b", "a"):
        routes.opened(name)
    assert routes.choose() == "a"
    routes.owe("a", 10)
    routes.owe("b", 4)
    assert routes.choose() == "b"
    routes.owe("b", 7)
    assert routes.choose() == "a"
    routes.paid("b", 100)
    assert routes.owed == {"a": 10, "b": 0}
    routes.closed("b")
    routes.owe("b", 1)
    assert routes.choose() == "a"
    routes.opened("b")
    assert routes.owed == {"a": 10, "b": 0}
