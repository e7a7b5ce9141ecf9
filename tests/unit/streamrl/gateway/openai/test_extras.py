"""What is asked beyond what is sampled: what of it reaches an engine, and what is refused where none tells it."""

from typing import Any

import pytest
from support.engines.bytewise import BYTEWISE, bytewise
from tokenizers import normalizers

from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.openai.extras import NO_EXTRAS, Echo, chat_extras
from streamrl.gateway.openai.requests import Limits, ParsedRequest, Reader
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.sessions.session_body import as_rollouts
from streamrl.gateway.vllm.generate import GenerateRequest
from streamrl.types import MOST_TOP_LOGPROBS, GenerationRequest, SamplingParams

LM_EVAL = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
"""What lm-evaluation-harness sends with prompts of ids, for log-likelihoods."""


def asked(*, most: int = MOST_TOP_LOGPROBS, **body: Any) -> ParsedRequest:
    reader = Reader(Limits("run", 64, 8, 256, most), BYTEWISE, None)
    return reader.completion(CompletionRequest(**{"model": "run", "prompt": "ab", **body}), 0)


def chat(most: int = MOST_TOP_LOGPROBS, **body: Any) -> Any:
    messages = [{"role": "user", "content": "1"}]
    return chat_extras(ChatRequest(model="run", messages=messages, **body), most)


def engine_asked(request: ParsedRequest) -> list[tuple[int, bool, int]]:
    made: list[GenerationRequest] = request.requests("r")
    return [(one.top_logprobs, one.prompt_logprobs, one.sampling.max_new_tokens) for one in made]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (0, False, 16)),
        ({"logprobs": 0}, (0, False, 16)),
        ({"logprobs": 5}, (5, False, 16)),
        ({"echo": True}, (0, False, 16)),
        ({"echo": True, "logprobs": 0}, (0, True, 16)),
        ({"echo": True, "logprobs": 2, "prompt_logprobs": 7}, (7, True, 16)),
        ({"logprobs": 3, "prompt_logprobs": 1}, (3, True, 16)),
        ({"prompt_logprobs": 0}, (0, True, 16)),
        ({"echo": True, "max_tokens": 0}, (0, False, 1)),
        (LM_EVAL, (1, True, 1)),
    ],
)
def test_an_engine_is_asked_for_what_is_shown_and_no_more(body: dict[str, Any], expected: Any) -> None:
    assert engine_asked(asked(**body)) == [expected]


def test_all_completions_of_all_prompts_are_scored_and_are_part_of_no_conversation() -> None:
    request = asked(prompt=[[1, 2, 3], [4]], n=2, **LM_EVAL)
    assert engine_asked(request) == [(1, True, 1)] * 4
    assert {(one.conversation, one.opening) for one in request.requests("r")} == {("", 0)}
    assert [len(echo.offsets) for echo in request.extras.echoes] == [3, 1]


@pytest.mark.parametrize(
    ("body", "code", "param", "what"),
    [
        ({"logprobs": 21}, "invalid_value", "logprobs", "20 of the likeliest tokens are told at most"),
        ({"prompt_logprobs": 21}, "invalid_value", "prompt_logprobs", "at most"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens", "`echo: true`"),
        ({"max_tokens": 0, "echo": False}, "invalid_value", "max_tokens", "`echo: true`"),
        ({"prompt_logprobs": 0, "stream": True}, "invalid_value", "prompt_logprobs", "`stream`"),
        ({"logprobs": 4, "most": 3}, "unsupported_parameter", "logprobs", "tells 3 of the likeliest"),
        ({"logprobs": 2, "most": 0}, "unsupported_parameter", "logprobs", "tells 0 of the likeliest"),
        ({"prompt_logprobs": 0, "most": 0}, "unsupported_parameter", "prompt_logprobs", "tells none"),
        ({"echo": True, "logprobs": 0, "most": 0}, "unsupported_parameter", "echo", "tells none"),
    ],
)
def test_what_is_not_told_is_refused_with_the_limit(body: dict[str, Any], code: str, param: str, what: str) -> None:
    with pytest.raises(Refusal, match=what) as refusal:
        asked(**body)
    assert (refusal.value.code, refusal.value.param) == (code, param)


@pytest.mark.parametrize(
    ("body", "most", "code"),
    [
        ({"top_logprobs": 2}, 20, "invalid_value"),
        ({"top_logprobs": 2, "logprobs": False}, 20, "invalid_value"),
        ({"top_logprobs": 21, "logprobs": True}, 20, "invalid_value"),
        ({"top_logprobs": 2, "logprobs": True}, 0, "unsupported_parameter"),
        ({"top_logprobs": 1, "logprobs": True}, 0, "unsupported_parameter"),
    ],
)
def test_a_chat_tells_others_beside_its_own_log_probs_alone(body: dict[str, Any], most: int, code: str) -> None:
    with pytest.raises(Refusal, match="top_logprobs") as refusal:
        chat(most, **body)
    assert (refusal.value.code, refusal.value.param) == (code, "top_logprobs")


def test_what_a_chat_asks_for_is_asked_of_the_engine() -> None:
    assert chat(top_logprobs=0) == chat(logprobs=True, top_logprobs=0) == NO_EXTRAS
    assert chat(logprobs=True, top_logprobs=20).top_logprobs == 20
    assert chat(prompt_logprobs=3).prompt_logprobs


def test_an_engine_that_tells_none_still_answers_one_and_echoes_texts() -> None:
    assert engine_asked(asked(logprobs=1, most=0)) == [(0, False, 16)]
    assert asked(logprobs=1, most=0).logprobs
    assert asked(echo=True, most=0).extras.echoes == (Echo("ab", []),)


def test_ids_are_echoed_as_their_text_and_its_offsets_are_those_of_whole_characters() -> None:
    ids = BYTEWISE.encode("a\u00e9b", add_special_tokens=False).tolist()
    (echo,) = asked(prompt=ids, echo=True, logprobs=0).extras.echoes
    assert echo == Echo("a\u00e9b", [0, 1, 1, 2])


def test_a_request_of_ids_is_asked_as_a_completion() -> None:
    params = {"logprobs": 3, "prompt_logprobs": 2, "max_tokens": 4}
    body = GenerateRequest(token_ids=[1, 2], sampling_params=params).completion(Limits("run", 64, 8, 256, 20))
    assert (body.logprobs, body.prompt_logprobs, body.max_tokens) == (3, 2, 4)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"echo": True, "logprobs": 0}, "echo"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"echo": True, "max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_turn_of_a_session_scores_no_prompt(body: dict[str, Any], param: str) -> None:
    drawn, completion = SamplingParams(), CompletionRequest(model="run", prompt="ab", **body)
    with pytest.raises(Refusal, match="outside of") as refusal:
        as_rollouts(asked(**body), completion, drawn)
    assert (refusal.value.code, refusal.value.param) == ("invalid_value", param)


def test_a_turn_of_a_session_may_tell_of_others_and_echo_its_prompt() -> None:
    completion = CompletionRequest(model="run", prompt="ab", logprobs=5)
    turn = as_rollouts(asked(logprobs=5), completion, SamplingParams())
    assert engine_asked(turn) == [(5, False, 16)]
    as_rollouts(asked(echo=True), completion, SamplingParams())


def test_texts_are_echoed_as_they_came_and_no_offset_is_beyond_them() -> None:
    longer = bytewise()
    longer._tokenizer.normalizer = normalizers.Prepend("xx")
    body = CompletionRequest(model="run", prompt="ab", echo=True, logprobs=0)
    parsed = Reader(Limits("run", 64, 8, 256, 20), longer, None).completion(body, 0)
    assert longer.decode(parsed.prompts[0]) == "xxab"
    assert parsed.extras.echoes == (Echo("ab", [0, 1, 2, 2]),)
