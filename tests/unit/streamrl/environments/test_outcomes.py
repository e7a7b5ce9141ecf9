"""What an environment may give, and how each mistake that people make is told."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from streamrl.environments.base import Done
from streamrl.environments.outcomes import MOST_BYTES, EnvironmentFault, messages_of, verdict_of

USER = {"role": "user", "content": "hi"}


def a_generator() -> Any:
    yield "hi"


async def an_async_generator() -> Any:
    yield "hi"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        (np.str_("hi"), "hi"),
        ([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}], "hi"),
    ],
)
def test_a_content_is_a_text_whatever_its_form(content: Any, text: str) -> None:
    assert messages_of([{"role": "user", "content": content}], "x") == [{"role": "user", "content": text}]


def test_a_message_of_the_model_may_be_calls_alone() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    assert messages_of([call], "x") == [call]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("obs", 1.0, True, False, {}), 'tuple of 5, as gymnasium has it.*environment.name = "gymnasium"'),
        (([USER], 1.0, True, {}), "tuple of 4, as gymnasium has it"),
        (("obs", {}), "tuple of 2, as gymnasium has it"),
        (USER, "one message stands in a list"),
        (a_generator(), "`return` instead"),
        (an_async_generator(), "`return` instead"),
        (Done, r"give an object: Done\(...\)"),
        (None, "x gave NoneType, not messages"),
        ([{"role": "user", "content": None}], "message 0: its content is NoneType"),
        ([{"role": "tool"}], "message 0: its content is NoneType"),
        ([{"role": "user", "content": b"hi"}], "its content is bytes"),
        ([{"role": "user", "content": {"a": 1}}], "its content is dict"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "a part of type 'image_url'"),
        ([{"role": "user", "content": ["hi"]}], "a part of type 'str'"),
        ([USER, {"content": "hi"}], "message 1: its role is None"),
        ([{"role": "user", "content": "x" * (MOST_BYTES // 2)}] * 3, "at most 16777216 are taken at once"),
    ],
)
def test_what_is_no_message_is_told_with_the_way_out(given: Any, text: str) -> None:
    with pytest.raises(EnvironmentFault, match=text):
        messages_of(given, "x")


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.array(1.0), torch.tensor(1.0), torch.ones(1)])
def test_a_reward_is_any_number(reward: Any) -> None:
    assert verdict_of(Done(reward), "x").reward == 1.0


@pytest.mark.parametrize(
    ("done", "text"),
    [
        (Done(1j), "the reward is a complex"),  # type: ignore[arg-type]
        (Done("1.0"), "the reward is '1.0', not a number"),  # type: ignore[arg-type]
        (Done({"reward": 1.0}), "the reward is a dict"),  # type: ignore[arg-type]
        (Done(np.ones(2)), "the reward is a ndarray"),  # type: ignore[arg-type]
        (Done(torch.ones(2)), "the reward is a Tensor"),  # type: ignore[arg-type]
        (Done(float("inf")), "the reward is inf"),
        (Done(1.0, [1.0]), "components of Done is a list, not a dict"),  # type: ignore[arg-type]
        (Done(1.0, {"a": None}), "component 'a' is None"),  # type: ignore[dict-item]
        (Done(1.0, {}, "won"), "info of Done is a str, not a dict"),  # type: ignore[arg-type]
        (Done(rewards=[1.0]), "rewards of Done is a list, not a dict"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_verdict_is_told(done: Done, text: str) -> None:
    with pytest.raises(EnvironmentFault, match=text):
        verdict_of(done, "x")


def test_nothing_in_the_place_of_a_dict_is_nothing() -> None:
    done = Done(1.0, None, None, None)  # type: ignore[arg-type]
    assert verdict_of(done, "x") == verdict_of(Done(1.0), "x")


def test_information_is_for_people_and_may_hold_what_libraries_give() -> None:
    info = {"a": np.float32(0.5), "b": np.arange(2), "c": torch.ones(1), "d": {1, 2}.__class__}
    assert json.loads(verdict_of(Done(1.0, {}, info), "x").info) == {
        "a": 0.5,
        "b": [0, 1],
        "c": [1.0],
        "d": "<class 'set'>",
    }
    assert json.loads(verdict_of(Done(1.0, {}, {"a": "x" * 5000}), "x").info) == {"info_bytes": 5008}
