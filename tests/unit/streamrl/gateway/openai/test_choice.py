"""One completion on its way: every token once, in order, with the version that sampled it."""

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines.bytewise import BYTEWISE

from streamrl.gateway.openai.choice import Choice, Delta, joined, pieces
from streamrl.gateway.routing import Routes
from streamrl.gateway.token_updates import TokenUpdate
from streamrl.types import PromptLogprobs, TopLogprobs

SPANS = [(0, 0, 1), (3, 0, 2), (9, 1, 2)]


def tokens(count: int) -> tuple[list[int], list[float]]:
    return [40 + i % 20 for i in range(count)], [-0.5 - i for i in range(count)]


SCORES = PromptLogprobs(np.array([-1.0, -2.0], np.float32))


def others(start: int, stop: int) -> TopLogprobs:
    """In each place tokens of its own, so that it shows which place a row is of."""
    ids = np.arange(2 * start, 2 * stop, dtype=np.int32).reshape(-1, 2)
    return TopLogprobs(ids, -ids.astype(np.float32))


def scored(start: int, stop: int, *, first: bool = False, reason: str = "", count: int = 12) -> TokenUpdate:
    """As of a request that asked for others and for its prompt's log-probs. first: it is the first news."""
    prompt = SCORES if first or reason else None
    return msgspec.structs.replace(news(start, stop, reason=reason), top_logprobs=others(start, stop), prompt=prompt)


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


@given(st.integers(0, 12), st.integers(1, 5), st.randoms(use_true_random=False))
def test_however_it_is_told_others_stay_in_their_places_and_the_prompt_comes_once(
    told: int, most: int, cuts: random.Random
) -> None:
    choice, deltas, at = Choice(0, BYTEWISE, ()), [], 0
    while at < told:
        stop, again = cuts.randint(at + 1, told), cuts.randint(0, at)
        deltas += [choice.take(one) for one in pieces(scored(again, stop, first=not at), most)]
        at = stop
    deltas += [choice.take(one) for one in pieces(scored(0, 12, reason="length"), most)]
    for delta in deltas:
        assert delta.top_logprobs is not None
        assert len(delta.top_logprobs.token_ids) == len(delta.top_logprobs.logprobs) == len(delta.token_ids)
    whole = joined(deltas)
    assert whole.top_logprobs is not None
    assert whole.top_logprobs.token_ids.tolist() == others(0, 12).token_ids.tolist()
    assert whole.top_logprobs.logprobs.tolist() == others(0, 12).logprobs.tolist()
    assert [delta.prompt for delta in deltas] == [SCORES, *[None] * (len(deltas) - 1)]
    assert whole.prompt is SCORES


def test_what_another_replica_does_not_know_any_more_was_told_before() -> None:
    choice = Choice(0, BYTEWISE, ())
    first = choice.take(scored(0, 5, first=True))
    known, lost = others(0, 12), np.arange(12) < 5
    ids = np.where(lost[:, None], -1, known.token_ids).astype(np.int32)
    rest = TopLogprobs(ids, np.where(lost[:, None], -np.inf, known.logprobs).astype(np.float32))
    again = msgspec.structs.replace(scored(0, 12, reason="length"), top_logprobs=rest)
    whole = joined([first, *(choice.take(piece) for piece in pieces(again, 4))])
    assert whole.top_logprobs is not None
    assert whole.top_logprobs.token_ids.tolist() == known.token_ids.tolist()


def test_what_begins_anew_tells_its_prompt_anew() -> None:
    choice = Choice(0, BYTEWISE, ())
    assert choice.take(scored(0, 5, first=True)).prompt is SCORES
    choice.begin()
    assert choice.take(scored(0, 3, first=True)).prompt is SCORES


def test_a_stop_string_cuts_what_is_told_of_others_too() -> None:
    text = BYTEWISE.decode(np.array(tokens(12)[0], np.int32))
    delta = Choice(0, BYTEWISE, (text[2:4],)).take(scored(0, 12, first=True))
    assert delta.finish_reason == "stop"
    assert delta.top_logprobs is not None
    assert delta.top_logprobs.token_ids.tolist() == others(0, 4).token_ids.tolist()


def test_what_nobody_asked_for_is_not_there() -> None:
    choice = Choice(0, BYTEWISE, ())
    whole = joined([choice.take(piece) for piece in pieces(news(0, 12, reason="stop"), 5)])
    assert (whole.top_logprobs, whole.prompt) == (None, None)


@pytest.mark.parametrize("reason", ["", "length", "stop"])
def test_a_choice_that_is_its_prompt_alone_shows_nothing_of_what_was_sampled(reason: str) -> None:
    choice = Choice(0, BYTEWISE, ("x",), completes=False)
    delta = choice.take(scored(0, 1, first=True, reason=reason))
    assert delta == Delta("", 0, [], [], [], [], "length", prompt=SCORES)
    assert (choice.num_tokens, choice.finish_reason, choice.cut) == (0, "length", False)


def test_a_prompt_whose_log_probs_are_no_numbers_is_no_answer() -> None:
    choice = Choice(0, BYTEWISE, ())
    broken = PromptLogprobs(np.array([-1.0, np.nan], np.float32))
    delta = choice.take(msgspec.structs.replace(scored(0, 3, first=True), prompt=broken))
    assert (delta.token_ids, delta.prompt, choice.ended) == ([], None, True)
    assert choice.error == "a log-prob of the prompt is not a number"
    assert choice.take(scored(0, 3, first=True)).token_ids == []


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
