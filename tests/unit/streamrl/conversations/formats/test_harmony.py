"""gpt-oss' channels: thoughts, calls and text are told apart, and no client sees a mark of them."""

import json
import random
import secrets
from typing import Any

import pytest

from streamrl.conversations.formats.harmony import MARKS
from streamrl.conversations.tool_calls import MessageReader, ParsedMessage

THOUGHTS = "<|channel|>analysis<|message|>They want a sum.<|end|>"
MORE = "<|start|>assistant<|channel|>analysis<|message|>Still.<|end|>"
TOLD = "<|start|>assistant<|channel|>commentary<|message|>I add.<|end|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>'
FINAL = "<|start|>assistant<|channel|>final<|message|> It is 2.\n<|return|>"


def reader(calls: bool = True, thinks: bool | None = False) -> MessageReader:
    return MessageReader(
        "n", {"add": {}} if calls else None, True, thinks, call_form="openai", thought_form="openai_gptoss"
    )


def parts(message: ParsedMessage) -> tuple[str, str, list[Any]]:
    return message.thoughts, message.content, [json.loads(call.arguments) for call in message.calls]


def in_pieces(text: str, cuts: random.Random | None, finish_reason: str, **options: Any) -> ParsedMessage:
    """cuts: None for letter by letter."""
    stream, message = reader(**options).stream(0), ParsedMessage("")
    while text:
        count = 1 if cuts is None else cuts.choice((1, 2, 9, 30))
        message += stream.feed(text[:count])
        text = text[count:]
    return message + stream.flush(finish_reason)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (THOUGHTS + FINAL, ("They want a sum.", " It is 2.\n", [])),
        (THOUGHTS + CALL, ("They want a sum.", "", [{"a": 1}])),
        (THOUGHTS + TOLD + MORE + CALL, ("They want a sum.\nStill.", "I add.", [{"a": 1}])),
        (TOLD + FINAL, ("", "I add.\n It is 2.\n", [])),
        (CALL.removeprefix("<|start|>assistant") + CALL, ("", "", [{"a": 1}] * 2)),
        (THOUGHTS.removesuffix("<|end|>") + FINAL, ("They want a sum.", " It is 2.\n", [])),
        (THOUGHTS.removesuffix("um.<|end|>"), ("They want a s", "", [])),
        (FINAL.removesuffix("\n<|return|>"), ("", " It is 2.", [])),
        (THOUGHTS + "<|start|>assistant<|channel|>fin", ("They want a sum.", "", [])),
        ("It is 2.", ("", "It is 2.", [])),
        ("<|message|>It is 2.<|return|>", ("", "It is 2.", [])),
        ("", ("", "", [])),
    ],
)
def test_channels_are_told_apart(text: str, told: tuple[str, str, list[Any]]) -> None:
    for finish_reason in ("stop", "length"):
        assert parts(reader().parse(0, text, finish_reason)) == told
        assert parts(in_pieces(text, None, finish_reason)) == told


def test_a_prompt_may_have_begun_the_thoughts() -> None:
    text = THOUGHTS.removeprefix("<|channel|>analysis<|message|>") + FINAL
    assert parts(reader(thinks=True).parse(0, text, "stop")) == ("They want a sum.", " It is 2.\n", [])


def test_what_is_not_asked_for_is_text() -> None:
    text = THOUGHTS + TOLD + CALL
    assert parts(reader(thinks=None).parse(0, text, "stop")) == ("", "They want a sum.\nI add.", [{"a": 1}])
    said = reader(calls=False).parse(0, text, "stop")
    assert parts(said) == ("They want a sum.", f"I add.{CALL}", [])
    assert MessageReader("n", None).parse(0, text, "stop") == ParsedMessage(text)


def test_a_template_is_not_given_channels_as_the_content_of_a_message() -> None:
    assert not reader().reads_content
    assert not reader(thinks=None).reads_content
    assert not reader(calls=False).reads_content
    assert reader(calls=False, thinks=None).reads_content


def test_random_texts_are_read_the_same_in_whatever_pieces_they_come() -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    words = [
        THOUGHTS,
        MORE,
        TOLD,
        CALL,
        FINAL,
        *MARKS,
        "assistant",
        "final",
        " to=functions.add",
        "to=",
        "{}",
        "<|",
        " ",
    ]
    read = 0
    for _ in range(3000):
        text, finish_reason = "".join(rng.choices(words, k=rng.randrange(9))), rng.choice(("stop", "length"))
        options = {"calls": rng.random() < 0.7, "thinks": rng.choice((True, False, False, None))}
        message = reader(**options).parse(0, text, finish_reason)
        assert in_pieces(text, rng, finish_reason, **options) == message, (text, options)
        assert not any(mark in message.thoughts for mark in MARKS)
        read += bool(message.thoughts) and bool(message.calls)
    assert read > 100
