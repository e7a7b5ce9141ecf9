"""A model that thinks again behind its words: each part is an item of the response, in its place."""

import json
from typing import Any

import numpy as np
from support.gateway.told_answers import streamed

from streamrl.conversations.tool_calls import MessageReader, ParsedMessage
from streamrl.gateway.openai.answers import Head
from streamrl.gateway.openai.choice import Delta
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.responses.answers import ResponseForm
from streamrl.gateway.responses.items import ResponsesRequest
from streamrl.types import SamplingParams

PIECES = (
    *("<|channel|>analysis<|message|>hm", "<|end|>", "<|start|>assistant<|channel|>commentary<|message|>I add", "."),
    *("<|end|>", "<|start|>assistant<|channel|>analysis<|message|>so", "<|end|><|start|>assistant<|channel|>"),
    "final<|message|>2<|return|>",
)


def parsed() -> ParsedRequest:
    fixed: dict[str, Any] = {"logprobs": False, "stream": True, "usage": True, "texts": (None,)}
    return ParsedRequest([np.array([1], np.int32)], 1, SamplingParams(), 0, (), (), **fixed)


def test_thoughts_behind_a_text_are_an_item_of_their_own() -> None:
    kept = list[ParsedMessage]()
    reader = MessageReader("n", {"add": {}}, True, False, call_form="openai", thought_form="openai_gptoss")
    form = ResponseForm(ResponsesRequest(model="run", input="1"), reader, lambda _, said, __: kept.append(said), str)
    head, data = Head("resp_x", 0, "run"), b""
    for place, text in enumerate(PIECES):
        reason = "stop" if place == len(PIECES) - 1 else ""
        delta = Delta(text, place, [place], [0.0], [0], [(place, 0, 1)], reason)
        data += form.step(head, 0, delta, parsed())
    data += form.closing(head, parsed(), len(PIECES))
    events = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")]
    assert streamed("/v1/responses", events)[:2] == ("hm\nso", "I add.\n2")
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"] * 2
    added = [one["item"]["id"] for one in events if one["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in events[-1]["response"]["output"]]
    assert kept == [ParsedMessage("I add.\n2", (), "hm\nso")]
