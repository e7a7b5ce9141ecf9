"""What a row says: the layouts that people have, and every odd value with its rule."""

import datetime
import decimal
import json
from typing import Any

import numpy as np
import pytest

from streamrl.tasks.data.columns import BadRow, item_of
from streamrl.tasks.data.values import as_json, plain

USER = {"role": "user", "content": "2+2?"}
VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [USER],
    "ability": "math",
    "reward_model": {"ground_truth": "4", "style": "rule"},
    "extra_info": {"index": 0, "split": "train"},
}


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"prompt": "2+2=", "answer": 4}, "2+2=", 4),
        ({"prompt": [USER], "solution": "4"}, [USER], "4"),
        ({"question": "2+2?", "answer": "#### 4"}, "2+2?", "#### 4"),
        ({"problem": "2+2?", "solution": "so 4", "answer": "4"}, "2+2?", "4"),
        (VERL, [USER], "4"),
        ({**VERL, "reward_model": json.dumps(VERL["reward_model"])}, [USER], "4"),
        ({"messages": [USER, {"role": "assistant", "content": "4"}]}, [USER], "4"),
        ({"conversations": [{"from": "human", "value": "2+2?"}, {"from": "gpt", "value": "4"}]}, [USER], "4"),
        ({"instruction": "Add.", "input": "2 2", "output": "4"}, "Add.\n\n2 2", "4"),
        ({"prompt": "2+2=", "completion": "4"}, "2+2=", "4"),
        ({"question": "2+2?", "response": "It is 4.", "answers": ["4", "four"]}, "2+2?", ["4", "four"]),
        ({"messages": [USER, {"role": "assistant", "content": "4"}], "output": "no"}, [USER], "4"),
        ({"conversation": [USER, {"role": "assistant", "content": "4"}]}, [USER], "4"),
        ({"conversations": [{"from": "Human", "value": "2+2?"}, {"from": "ChatGPT", "value": "4"}]}, [USER], "4"),
        ({"instruction": "Add.", "input": ""}, "Add.", None),
        ({"prompt": json.dumps([USER]), "answer": "4"}, [USER], "4"),
        ({"prompt": str([USER]), "answer": "4"}, [USER], "4"),
        ({"prompt": "[{'x': 1}, 2]"}, "[{'x': 1}, 2]", None),
        ({"prompt": "[{ what is this?"}, "[{ what is this?", None),
        ({"prompt": [{"role": "user", "content": [{"type": "text", "text": "2+2?"}]}]}, [USER], None),
        ({"prompt": [{**USER, "tool_calls": None, "name": None}]}, [USER], None),
        ({"prompt": None, "question": "2+2?"}, "2+2?", None),
        ({"prompt": json.dumps([USER], indent=1)}, [USER], None),
        ({"prompt": str(np.array([USER, USER], object))}, [USER, USER], None),
        ({"prompt": USER}, [USER], None),
        ({"prompt": b"2+2?", "answer": b"4"}, "2+2?", "4"),
        ({"prompt": "2+2?", "reward_model": "{'style': 'rule', 'ground_truth': '4'}"}, "2+2?", "4"),
        ({"prompt": "[\n{\n not messages"}, "[\n{\n not messages", None),
        ({"Question": "2+2?", " Answer": "4"}, "2+2?", "4"),
        ({"prompt": np.array([USER], object), "answer": np.int64(4)}, [USER], 4),
    ],
    ids=str,
)
def test_the_layouts_that_people_have(row: dict[str, Any], prompt: object, answer: object) -> None:
    item = item_of(row, {})
    assert item.prompt == prompt
    assert item.payload.get("answer") == answer


def test_what_supervised_data_calls_an_answer_is_none_where_it_is_the_prompt_or_another_is_named() -> None:
    assert "answer" not in item_of({"output": "2+2?"}, {"prompt": "output"}).payload
    assert item_of({"prompt": "2+2=", "gold": None, "output": "4"}, {"answer": "gold"}).payload["answer"] is None


KEPT = {"bytes": b"\x89PNG", "path": None}


class Decoded:
    """As `datasets` streams an image of the hub."""

    __module__ = "PIL.PngImagePlugin"


@pytest.mark.parametrize(
    "media",
    [KEPT, [KEPT], {"bytes": None, "path": "a.png"}, {"array": [0.0], "sampling_rate": 8}, Decoded()],
    ids=["bytes", "several", "a path", "a sound", "decoded"],
)
def test_a_prompt_about_what_the_model_would_not_see_is_a_bad_row(media: object) -> None:
    with pytest.raises(BadRow, match=r"column 'picture' has an image or a recording: .* leave the column out"):
        item_of({"question": "What is it?", "picture": media, "answer": "a dog"}, {})


def test_a_column_of_images_may_have_none() -> None:
    for none in (None, [], {"bytes": None, "path": None}, [{"bytes": None, "path": None}]):
        assert item_of({"question": "2+2?", "images": none}, {}).prompt == "2+2?"


def test_the_reward_is_given_every_other_column_and_the_messages() -> None:
    payload = item_of(VERL, {}).payload
    assert payload["messages"] == [USER]
    assert {key: payload[key] for key in ("data_source", "reward_model", "extra_info")} == {
        key: VERL[key] for key in ("data_source", "reward_model", "extra_info")
    }
    assert "prompt" not in payload


def call_of(arguments: object) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]}


def test_arguments_of_calls_that_are_text_reach_the_template_as_objects() -> None:
    """As in the gateway: a template would write the text into quotes once more."""
    (_, said) = item_of({"prompt": [USER, call_of('{"city": "Bonn"}'), USER]}, {}).prompt[:2]
    assert said == {**call_of({"city": "Bonn"}), "content": ""}
    with pytest.raises(BadRow, match=r"column 'prompt' has a call whose arguments are '\[7\]': no JSON object"):
        item_of({"prompt": [USER, call_of("[7]"), USER]}, {})


def test_keys_that_only_other_records_of_a_table_have_reach_no_template() -> None:
    tools = [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}, "b": None}}}}]
    row = {"prompt": [USER, call_of({"city": "Bonn", "days": None}), USER], "tools": tools}
    item = item_of(row, {}, filled=True)
    assert item.prompt[1]["tool_calls"] == call_of({"city": "Bonn"})["tool_calls"]  # type: ignore[index]
    assert item.tools == [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}]
    as_written = item_of(row, {})  # a null that somebody wrote is one
    assert as_written.tools == tools
    assert as_written.prompt[1]["tool_calls"] == row["prompt"][1]["tool_calls"]  # type: ignore[index]


def test_no_column_shadows_what_streamrl_passes_itself() -> None:
    shadows = {"completion": "x", "completions": "x", "prompts": "x", "completion_ids": [1], "finish_reason": "stop"}
    assert item_of({"question": "2+2?", **shadows}, {}).payload == {"answer": "x"}  # by its own name


def test_columns_with_other_names_and_inside_of_records() -> None:
    row = {"meta": {"task": {"ask": "2+2?"}, "gold": [4]}, "hint": "Be short.", "prompt": "not this"}
    item = item_of(row, {"prompt": "meta.task.ask", "answer": "meta.gold", "system": "hint"})
    assert (item.prompt, item.payload["answer"], item.system) == ("2+2?", [4], "Be short.")
    assert item_of({"meta": json.dumps(row["meta"])}, {"prompt": "meta.task.ask"}).prompt == "2+2?"


@pytest.mark.parametrize("gold", [{}, {"gold": None}], ids=["not there", "null"])
def test_a_column_that_is_named_for_answers_has_no_stand_in(gold: dict[str, Any]) -> None:
    row = {"prompt": "2+2=", "answer": "of another matter", **gold}
    assert item_of(row, {"answer": "gold"}).payload["answer"] is None


def test_tools_and_arguments_of_the_template_may_be_in_the_row() -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    row = {"prompt": [USER], "tools": json.dumps([tool]), "chat_template_kwargs": {"enable_thinking": False}}
    item = item_of(row, {})
    assert (item.tools, item.template_arguments) == ([tool], {"enable_thinking": False})
    assert item_of({"prompt": [USER], "tools": []}, {}).tools is None


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": ""}, "column 'prompt' is '': the prompt is empty"),
        ({"prompt": "  \n"}, "the prompt is empty"),
        ({"prompt": None}, "column 'prompt' is None: the prompt is empty"),
        ({"ask": "2+2?"}, "no column 'prompt'; it has ask: say which with data.columns"),
        ({}, "no column 'prompt'; it has none"),
        ({"prompt": 7}, "column 'prompt' is 7: neither a text nor a list of messages"),
        ({"prompt": float("nan")}, "neither a text nor a list of messages"),
        ({"prompt": "a\ud800b"}, r"column 'prompt' is 'a\\ud800b': no text in UTF-8"),
        ({"prompt": []}, "column 'prompt' is \\[\\]: neither"),
        ({"prompt": ["text"]}, "neither a text nor a list of messages"),
        ({"prompt": [{"content": "x"}]}, "a message without a role"),
        ({"prompt": [{"role": "user", "content": None}]}, "a message without content"),
        ({"prompt": [{"role": "user", "content": 7}]}, "whose content is 7, not text"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "streamrl trains on text alone"),
        ({"prompt": [USER], "tools": [7]}, "column 'tools'"),
    ],
    ids=str,
)
def test_a_row_without_a_prompt_says_which_column_which_value_and_the_way_out(row: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRow, match=words):
        item_of(row, {})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("inf"), None),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2]]), [[1, 2]]),
        (np.nan, None),
        (decimal.Decimal("1.5"), 1.5),
        (decimal.Decimal("72"), 72),
        (decimal.Decimal("0.10"), 0.1),
        (decimal.Decimal("12345678901234567.89"), "12345678901234567.89"),
        (decimal.Decimal("1e999"), "1E+999"),
        (decimal.Decimal("NaN"), None),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        ({1: {"a": (1, float("nan"))}}, {"1": {"a": [1, None]}}),
        (b"bytes", "bytes"),
        (b"\x89PNG", None),
        ("a\ud800b", "a\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),
        (2**70, 2**70),
        (None, None),
    ],
    ids=repr,
)
def test_values_of_other_libraries_become_plain_json(value: object, expected: object) -> None:
    assert plain(value) == expected
    assert json.loads(as_json(plain(value))) == expected
