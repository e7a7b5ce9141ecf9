"""Tool calls in text: what is read, in whatever pieces it comes, and what stays text."""

import json
import random
import secrets

import pytest

from streamrl.conversations.formats.tagged import BEGIN, END
from streamrl.conversations.tool_calls import MessageReader, MessageStream, ParsedMessage

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": "object"}}}
TOOLS = {"add": SCHEMA, "odd": {"properties": {"a": 7, "b": {"type": ["integer", "null"]}}}, "odder": {"properties": 3}}


def said(text: str, finish_reason: str = "stop") -> ParsedMessage:
    return MessageReader("n", TOOLS).parse(0, text, finish_reason)


def calls(text: str, finish_reason: str = "stop") -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in said(text, finish_reason).calls]


def hermes(**arguments: object) -> str:
    return f"{BEGIN}\n{json.dumps({'name': 'add', 'arguments': arguments})}\n{END}"


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name": "add", "arguments": {"a": 1}}', '{"a":1}'),
        ('\n{"arguments": {"b": [1, {"c": null}], "a": "</x>"}, "name": "add"}\n', '{"b":[1,{"c":null}],"a":"</x>"}'),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', '{"a":1}'),
        ('{"name": "add"}', "{}"),
        ('{"name": "add", "arguments": {"ä": "\\u00fc"}}', '{"ä":"ü"}'),
        ("<function=add>\n<parameter=a>\n12\n</parameter>\n<parameter=s>\n12\n</parameter>\n</function>", None),
        ("<function=add></function>", "{}"),
        ("<function=add><parameter=a>twelve</parameter></function>", '{"a":"twelve"}'),
        ('<function=add><parameter=o>{"x": [1]}</parameter></function>', '{"o":{"x":[1]}}'),
        ("<function=add><parameter=s> a\nb </parameter></function>", '{"s":" a\\nb "}'),
        ("<function=add><parameter=a>null</parameter></function>", '{"a":null}'),
        ("<function=add><parameter=unknown>1</parameter></function>", '{"unknown":"1"}'),
    ],
)
def test_both_forms_are_read(body: str, arguments: str | None) -> None:
    assert calls(BEGIN + body + END) == [("add", arguments or '{"a":12,"s":"12"}')]


@pytest.mark.parametrize("name", ["nobody's", "odd", "odder"])
def test_a_schema_that_says_nothing_leaves_arguments_text(name: str) -> None:
    body = f"<function={name}><parameter=a>1</parameter><parameter=b>2</parameter></function>"
    (one,) = calls(BEGIN + body + END)
    assert one == (name, '{"a":"1","b":2}' if name == "odd" else '{"a":"1","b":"2"}')


@pytest.mark.parametrize(
    "body",
    [
        "",
        "hello",
        "{",
        "[]",
        "7",
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "add", "arguments": [1]}',
        '{"name": "add", "arguments": "no JSON"}',
        '{"name": "add", "arguments": {"a": NaN}}',
        '{"name": "add", "arguments": {"a": 1e999}}',
        '{"name": "add", "arguments": {"a": "\\ud800"}}',
        '{"name": "add", "arguments": ' + '{"a":' * 10**5 + "1" + "}" * 10**5 + "}",
        "<function=add>",
        "<function=></function>",
        "<function=add><parameter=a>1</function>",
        "<function=add>1</function>",
        "<function=add><parameter=a>1</parameter>2</function>",
        '<tool_call>{"name": "add", "arguments": {}}',
    ],
)
def test_what_is_no_call_stays_text_unchanged(body: str) -> None:
    text = f" before {BEGIN}{body}{END} behind\n"
    assert said(text) == ParsedMessage(text)


def test_text_around_calls_is_kept_and_white_space_beside_them_is_not() -> None:
    text = f"\n I add.\n\n{hermes(a=1)}\n{hermes(a=2)}\n Done. \n{hermes(a=3)} \n"
    found = said(text)
    assert found.content == "\n I add.\n Done."
    assert [call.arguments for call in found.calls] == ['{"a":1}', '{"a":2}', '{"a":3}']
    assert len({call.id for call in found.calls}) == 3
    assert said(" nothing here \n") == ParsedMessage(" nothing here \n")


def test_a_model_that_stopped_may_leave_out_the_last_mark_and_one_that_was_cut_off_may_not() -> None:
    open_call = hermes(a=1).removesuffix(END)
    assert calls(open_call) == [("add", '{"a":1}')]
    assert said(open_call, "length") == ParsedMessage(open_call)
    assert said(open_call[:-4]) == ParsedMessage(open_call[:-4])


def test_ids_of_calls_differ_between_requests_choices_and_calls() -> None:
    text = hermes(a=1) * 2
    ids = {
        call.id
        for number in "ab"
        for index in (0, 1)
        for call in MessageReader(number, {}).parse(index, text, "").calls
    }
    assert len(ids) == 8


def in_pieces(text: str, rng: random.Random, finish_reason: str) -> ParsedMessage:
    stream: MessageStream = MessageReader("n", TOOLS).stream(0)
    parts = []
    while text:
        count = rng.choice((1, 1, 2, 3, 7, 40))
        parts.append(stream.feed(text[:count]))
        text = text[count:]
    parts.append(stream.flush(finish_reason))
    return ParsedMessage("".join(one.content for one in parts), tuple(call for one in parts for call in one.calls))


def test_random_texts_are_read_the_same_in_whatever_pieces_they_come() -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    words = [BEGIN, END, hermes(a=1), "<tool", "_call>", "</", " ", "\n", "hi", '{"name": "add", "arguments": {}}', "<"]
    read = 0
    for _ in range(3000):
        text, finish_reason = "".join(rng.choices(words, k=rng.randrange(9))), rng.choice(("stop", "length"))
        whole = said(text, finish_reason)
        assert in_pieces(text, rng, finish_reason) == whole, text
        assert whole.calls or whole.content == text
        read += len(whole.calls)
    assert read > 500


@pytest.mark.parametrize("piece", [1, 7, 10**6])
def test_without_parallel_calls_the_first_one_is_shown_alone(piece: int) -> None:
    one, two = ('<tool_call>{"name": "add", "arguments": {"a": NUMBER}}</tool_call>'.replace("NUMBER", n) for n in "12")
    text = f"I add. {one}\n{two} done"
    reader = MessageReader("n", {"add": {}}, parallel=False)
    stream = reader.stream(0)
    said = [stream.feed(text[at : at + piece]) for at in range(0, len(text), piece)] + [stream.flush("stop")]
    calls = [call for part in said for call in part.calls]
    assert [call.arguments for call in calls] == ['{"a":1}']
    assert stream.num_calls == 1
    assert "".join(part.content for part in said) == "I add. done"
    assert reader.parse(0, text, "stop").calls == tuple(calls)
