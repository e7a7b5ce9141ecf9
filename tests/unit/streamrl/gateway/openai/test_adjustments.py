"""What clients send to change logits, as an engine gets it; and what is refused."""

from typing import Any

import pytest
from pydantic import ValidationError
from support.engines.bytewise import BYTEWISE

from streamrl.gateway.openai.adjustments import MOST_BIASED
from streamrl.gateway.openai.bodies import CompletionRequest
from streamrl.gateway.openai.requests import Limits, Reader
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.sessions.session_body import as_rollouts
from streamrl.gateway.vllm.generate import GenerateRequest
from streamrl.types import Adjustments, SamplingParams

VOCAB = 2048


def limits(adjusts: bool = True) -> Limits:
    return Limits("run", 64, 8, VOCAB, 20, adjusts_logits=adjusts)


def reader(adjusts: bool = True) -> Reader:
    return Reader(limits(adjusts), BYTEWISE, None)


def body(**more: Any) -> CompletionRequest:
    return CompletionRequest(model="run", prompt="1", max_tokens=16, **more)


EACH = [
    ({"logit_bias": {"7": -3, "5": 1.5}}, Adjustments(logit_bias=((5, 1.5), (7, -3.0)))),
    ({"presence_penalty": 0.5}, Adjustments(presence_penalty=0.5)),
    ({"frequency_penalty": -2}, Adjustments(frequency_penalty=-2.0)),
    ({"repetition_penalty": 1.2}, Adjustments(repetition_penalty=1.2)),
    ({"min_tokens": 16}, Adjustments(min_tokens=16)),
]


@pytest.mark.parametrize(("more", "asked"), EACH)
def test_each_completion_of_a_request_is_adjusted(more: dict[str, Any], asked: Adjustments) -> None:
    parsed = reader().completion(body(n=2, **more), 0)
    assert [one.adjustments for one in parsed.requests("r")] == [asked] * 2


def test_vllms_route_of_ids_takes_them() -> None:
    sampling = {"presence_penalty": 0.5, "min_tokens": 3, "logit_bias": {"1": 2}}
    asked = GenerateRequest(token_ids=[1], sampling_params=sampling).completion(limits())
    wanted = Adjustments(presence_penalty=0.5, min_tokens=3, logit_bias=((1, 2.0),))
    assert reader().completion(asked, 0).adjustments == wanted


def test_neutral_values_ask_for_nothing() -> None:
    neutral = {
        "logit_bias": {},
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1,
        "min_tokens": 0,
    }
    for adjusts in (True, False):
        assert reader(adjusts).completion(body(**neutral), 0).adjustments is None
        assert reader(adjusts).completion(body(), 0).adjustments is None


@pytest.mark.parametrize(
    ("more", "param", "told"),
    [
        ({"min_tokens": 17}, "min_tokens", "min_tokens 17 is more than the 16 .* raise max_tokens"),
        ({"logit_bias": {str(VOCAB): 1}}, "logit_bias", f"the token {VOCAB}; the model has {VOCAB}"),
        ({"logit_bias": {str(i): 1 for i in range(MOST_BIASED + 1)}}, "logit_bias", f"at most {MOST_BIASED}"),
    ],
)
def test_what_cannot_be_is_refused_by_name(more: dict[str, Any], param: str, told: str) -> None:
    with pytest.raises(Refusal, match=told) as refusal:
        reader().completion(body(**more), 0)
    assert (refusal.value.code, refusal.value.param) == ("invalid_value", param)


@pytest.mark.parametrize(
    "more",
    [
        {"logit_bias": {"a": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"1": 101}},
        {"logit_bias": {"1": float("nan")}},
        {"presence_penalty": 2.5},
        {"frequency_penalty": float("inf")},
        {"repetition_penalty": 0},
        {"min_tokens": -1},
    ],
    ids=str,
)
def test_what_is_out_of_range_is_no_body(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(more))):
        body(**more)


@pytest.mark.parametrize(("more", "asked"), EACH)
def test_an_engine_that_changes_no_logits_is_asked_for_none(more: dict[str, Any], asked: Adjustments) -> None:
    with pytest.raises(Refusal, match="changes logits, which the engine of this run") as refusal:
        reader(False).completion(body(**more), 0)
    assert (refusal.value.code, refusal.value.param) == ("unsupported_parameter", next(iter(more)))


@pytest.mark.parametrize(("more", "asked"), EACH)
def test_a_turn_of_a_session_is_drawn_from_the_models_own_distribution(
    more: dict[str, Any], asked: Adjustments
) -> None:
    sent = body(**more)
    with pytest.raises(Refusal, match="which the learner knows") as refusal:
        as_rollouts(reader().completion(sent, 0), sent, SamplingParams())
    assert (refusal.value.code, refusal.value.param) == ("invalid_value", next(iter(more)))
