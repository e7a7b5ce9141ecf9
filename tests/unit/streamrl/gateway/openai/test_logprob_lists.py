"""Log-probs in the words of OpenAI and of vLLM: a token's own number everywhere, and no number lost."""

import numpy as np
import pytest
from support.engines.bytewise import BYTEWISE

from streamrl.gateway.openai.choice import Delta
from streamrl.gateway.openai.extras import Echo
from streamrl.gateway.openai.logprobs import (
    LEAST,
    TokenTexts,
    completion_logprobs,
    content_logprobs,
    id_name,
    prompt_logprobs,
)
from streamrl.gateway.refusal import json_bytes
from streamrl.types import PromptLogprobs, TopLogprobs

NONE = (-1, -np.inf)
A, B, C = (BYTEWISE.encode(letter, add_special_tokens=False).tolist()[0] for letter in "abc")
BROKEN = [token_id for token_id in range(256) if BYTEWISE.decode(np.array([token_id])) == "\ufffd"][:3]
"""Halves of characters: tokens of equal text."""
NAME = TokenTexts(BYTEWISE).name(as_ids=False)


def top_logprobs(*rows: list[tuple[int, float]]) -> TopLogprobs:
    ids = np.array([[token_id for token_id, _ in row] for row in rows], np.int32)
    return TopLogprobs(ids, np.array([[logprob for _, logprob in row] for row in rows], np.float32))


def delta(
    ids: list[int], logprobs: list[float], told: TopLogprobs | None, prompt: PromptLogprobs | None = None
) -> Delta:
    return Delta("", 0, ids, logprobs, list(range(len(ids))), [], "length", "", told, prompt)


def scores(logprobs: list[float], told: TopLogprobs | None = None) -> PromptLogprobs:
    return PromptLogprobs(np.array(logprobs, np.float32), told)


def test_the_drawn_token_is_always_told_with_its_own_log_prob() -> None:
    among = [(B, -0.25), (A, -0.5000001)]
    beyond = [(B, -0.25), (C, -1.0)]
    told = completion_logprobs(delta([A, A], [-0.5, -4.0], top_logprobs(among, beyond)), 2, NAME)
    assert told["top_logprobs"] == [{"b": -0.25, "a": -0.5}, {"b": -0.25, "c": -1.0, "a": -4.0}]
    assert list(told["top_logprobs"][1]) == ["b", "c", "a"]
    assert (told["tokens"], told["token_logprobs"], told["text_offset"]) == (["a", "a"], [-0.5, -4.0], [0, 1])


def test_a_greedy_token_is_the_likeliest_to_a_client_that_compares() -> None:
    other_bit = float(np.nextafter(np.float32(-0.5), np.float32(0)))
    told = completion_logprobs(delta([A], [-0.5], top_logprobs([(A, other_bit)])), 1, NAME)
    assert other_bit != -0.5
    assert max(told["top_logprobs"][0].values()) == told["token_logprobs"][0]


def test_of_equal_texts_the_drawn_and_then_the_likeliest_has_it_and_the_others_their_ids() -> None:
    first, second, drawn = BROKEN
    row = [(first, -0.25), (A, -1.5), (second, -2.0), (drawn, -3.0)]
    (told,) = completion_logprobs(delta([drawn], [-3.0], top_logprobs(row)), 4, NAME)["top_logprobs"]
    assert told == {"\ufffd": -3.0, id_name(first): -0.25, "a": -1.5, id_name(second): -2.0}
    (told,) = completion_logprobs(delta([A], [-1.5], top_logprobs(row)), 4, NAME)["top_logprobs"]
    assert told == {"\ufffd": -0.25, "a": -1.5, id_name(second): -2.0, id_name(drawn): -3.0}


def test_where_there_are_fewer_or_none_is_known_nothing_is_told_of_them() -> None:
    told = top_logprobs([(A, -0.5), NONE], [NONE, NONE])
    lists = completion_logprobs(delta([A, B], [-0.5, -0.75], told), 2, NAME)
    assert lists["top_logprobs"] == [{"a": -0.5}, {"b": -0.75}]
    content = content_logprobs(delta([A, B], [-0.5, -0.75], told), 2, lambda *one: {"token": one})
    assert [one["top_logprobs"] for one in content] == [[{"token": (A, -0.5)}], []]
    json_bytes({"all": [lists, content]})


def test_a_chat_tells_just_so_many_the_likeliest_first() -> None:
    told = top_logprobs([(B, -0.25), (A, -0.5), (C, -2.0)])
    (content,) = content_logprobs(delta([C], [-2.5], told), 2, lambda *one: {"token": one})
    assert content == {"token": (C, -2.5), "top_logprobs": [{"token": (B, -0.25)}, {"token": (A, -0.5)}]}
    (content,) = content_logprobs(delta([C], [-2.5], told), 3, lambda *one: {"token": one})
    assert content["top_logprobs"][-1] == {"token": (C, -2.5)}, "its own log-prob"


def test_without_a_number_there_are_no_lists_of_others() -> None:
    plain = delta([A], [-0.5], None)
    assert completion_logprobs(plain, 0, NAME)["top_logprobs"] is None
    assert content_logprobs(plain, 0, lambda *_: {})[0]["top_logprobs"] == []


def test_what_an_engine_does_not_tell_is_no_answer() -> None:
    with pytest.raises(ValueError, match="zip"):
        completion_logprobs(delta([A], [-0.5], None), 1, NAME)
    with pytest.raises(ValueError, match="zip"):
        prompt_logprobs([A, B], None, 0, NAME)


def test_an_echo_puts_the_prompt_before_the_completion_in_each_list() -> None:
    before = scores([-1.0, -np.inf], top_logprobs([(B, -1.0)], [(A, -0.5)]))
    answer = delta([A], [-0.25], top_logprobs([(A, -0.25)]), before)
    told = completion_logprobs(answer, 1, NAME, [A, B, C], Echo("abc", [0, 1, 2]))
    assert told["tokens"] == ["a", "b", "c", "a"]
    assert told["token_logprobs"] == [None, -1.0, LEAST, -0.25]
    assert told["top_logprobs"] == [None, {"b": -1.0}, {"a": -0.5, "c": LEAST}, {"a": -0.25}]
    assert told["text_offset"] == [0, 1, 2, 3]
    json_bytes(told)
    later = completion_logprobs(answer._replace(start=5, offsets=[5]), 1, NAME, [], Echo("abc", [0, 1, 2]))
    assert (later["tokens"], later["text_offset"]) == (["a"], [8])


def test_a_prompt_in_the_form_of_vllm_has_each_token_with_its_rank_where_that_is_known() -> None:
    told = scores([-0.75, -3.0], top_logprobs([(A, -0.5), (B, -0.7500001)], [(A, -0.25), (B, -2.0)]))
    first, second, third = prompt_logprobs([A, B, C], told, 1, NAME)
    assert first is None
    assert second == {
        str(B): {"logprob": -0.75, "rank": 2, "decoded_token": "b"},
        str(A): {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
    }
    assert third == {
        str(C): {"logprob": -3.0, "rank": None, "decoded_token": "c"},
        str(A): {"logprob": -0.25, "rank": 1, "decoded_token": "a"},
    }


def test_a_prompt_of_one_token_and_one_without_others_are_told() -> None:
    assert prompt_logprobs([A], scores([]), 0, None) == [None]
    (_, only) = prompt_logprobs([A, B], scores([-1.0]), 0, None)
    assert only == {str(B): {"logprob": -1.0, "rank": None, "decoded_token": None}}
