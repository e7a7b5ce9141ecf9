"""What clients send for structured output and for calls that must be made, as the grammar that an engine follows."""

import json
from typing import Any

import pytest
from support.engines.bytewise import BYTEWISE, bytewise

from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.openai.grammars import asking_for_grammar, calls_grammar, grammar_of
from streamrl.gateway.openai.requests import Limits, Reader
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.vllm.generate import GenerateRequest
from streamrl.models.grammars import Grammars
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import Grammar

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
END = 256


def with_end() -> TextTokenizer:
    """A token for each byte, and an end that is none of them."""
    tokenizer = bytewise()._tokenizer
    tokenizer.add_special_tokens(["<end>"])
    return TextTokenizer(tokenizer, eos_token_ids=(END,))


GRAMMARS = Grammars(with_end, END + 1)
ADD = {"type": "object", "properties": {"a": {"$ref": "#/$defs/number"}}, "$defs": {"number": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {**ADD, "required": ["a"]}}},
    {"type": "function", "function": {"name": "now"}},
]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 3}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def completion(**body: Any) -> CompletionRequest:
    return CompletionRequest(model="run", prompt="1", **body)


def chat(**body: Any) -> ChatRequest:
    return ChatRequest(**{"model": "run", "messages": [{"role": "user", "content": "1"}], **body})


def is_text_of(grammar: Grammar | None, text: str) -> bool:
    """Whether a text follows a grammar to its end."""
    assert grammar is not None
    constraint = GRAMMARS.begin(grammar)
    try:
        for token_id in BYTEWISE.encode(text).tolist():
            constraint.take(token_id)
    except ValueError:
        return False
    return bool(constraint.allowed()[END // 32] >> (END % 32) & 1)


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"response_format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA, "regex": None}},
    ],
)
@pytest.mark.parametrize("thinks", [None, False])
def test_each_way_to_send_a_schema_is_that_schema(body: dict[str, Any], thinks: bool | None) -> None:
    grammar = grammar_of(completion(**body), thinks)
    assert is_text_of(grammar, '{"n": 12}')
    assert is_text_of(grammar, '{\n  "n":-7\n}')
    assert not is_text_of(grammar, '{"m": 12}')
    assert not is_text_of(grammar, '{"n": 12')


@pytest.mark.parametrize(
    "body", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_any_object_is_an_object(body: dict[str, Any]) -> None:
    assert is_text_of(grammar_of(completion(**body)), '{"m": [1, {"b": null}]}')
    assert not is_text_of(grammar_of(completion(**body)), "[1]")


@pytest.mark.parametrize("thinks", [None, False])
@pytest.mark.parametrize("name", ["guided_regex", "regex", "structured_outputs"])
def test_a_regular_expression_is_of_the_whole_text(name: str, thinks: bool | None) -> None:
    value: Any = {"regex": "a/(b|c)+"} if name == "structured_outputs" else "a/(b|c)+"
    grammar = grammar_of(completion(**{name: value}), thinks)
    assert is_text_of(grammar, "a/bcb")
    assert not is_text_of(grammar, "a/")
    assert not is_text_of(grammar, "xa/b")


@pytest.mark.parametrize("thinks", [None, False])
@pytest.mark.parametrize("name", ["guided_choice", "structured_outputs"])
def test_a_choice_is_one_of_its_texts(name: str, thinks: bool | None) -> None:
    choices = ['yes "sir"', "no\n", "maybe\\é"]
    value: Any = {"choice": choices} if name == "structured_outputs" else choices
    grammar = grammar_of(completion(**{name: value}), thinks)
    assert all(is_text_of(grammar, choice) for choice in choices)
    assert not is_text_of(grammar, "no")


def test_thoughts_come_before_the_grammar_where_they_are_read() -> None:
    schema = {"guided_json": SCHEMA}
    inside, maybe = grammar_of(completion(**schema), True), grammar_of(completion(**schema), False)
    assert is_text_of(inside, 'is 2 </ 3? {"x": 1} </think>\n\n{"n": 1}')
    assert not is_text_of(inside, '{"n": 1}')
    assert is_text_of(maybe, '<think>well</think>{"n": 1}')
    assert is_text_of(maybe, '{"n": 1}')
    assert not is_text_of(maybe, 'well</think>{"n": 1}')


@pytest.mark.parametrize(
    "body",
    [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"regex": ""}, {"guided_json": None}],
)
def test_what_asks_for_nothing_is_no_grammar(body: dict[str, Any]) -> None:
    assert grammar_of(completion(**body)) is None
    assert list(asking_for_grammar(completion(**body))) == []


@pytest.mark.parametrize(
    ("body", "code", "param", "told"),
    [
        ({"response_format": {"type": "xml"}}, "unsupported_parameter", "response_format", "type 'xml'"),
        ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format", "with its `schema`"),
        ({"guided_json": {"type": "nothing"}}, "invalid_value", "guided_json", "nothing"),
        ({"guided_json": "{"}, "invalid_value", "guided_json", "no grammar that can be followed"),
        ({"guided_regex": "(1"}, "invalid_value", "guided_regex", "unclosed group"),
        ({"guided_choice": []}, "invalid_value", "guided_choice", "one text or more"),
        ({"guided_choice": ["a", ""]}, "invalid_value", "guided_choice", "none of them empty"),
        (
            {"structured_outputs": {"grammar": "x"}},
            "unsupported_parameter",
            "structured_outputs",
            "json, regex, choice",
        ),
        ({"guided_json": SCHEMA, "regex": "a"}, "invalid_value", "regex", "guided_json and regex are two grammars"),
        ({"regex": "a" * 70_000}, "invalid_value", "regex", "characters; at most 65536"),
    ],
)
@pytest.mark.parametrize("thinks", [None, True])
def test_what_cannot_be_followed_is_refused_by_name(
    body: dict[str, Any], code: str, param: str, told: str, thinks: bool | None
) -> None:
    with pytest.raises(Refusal) as refusal:
        grammar_of(completion(**body), thinks)
    assert (refusal.value.code, refusal.value.param) == (code, param)
    assert told in str(refusal.value)


@pytest.mark.parametrize("thinks", [None, True, False])
def test_a_call_that_must_be_made_is_one_of_the_tools(thinks: bool | None) -> None:
    begin = {None: "", True: "add them</think>\n", False: "<think>add them</think>\n"}[thinks]
    grammar = calls_grammar(chat(tools=TOOLS, tool_choice="required"), "hermes", thinks)
    for text in (CALL, NOW, f"{CALL}\n{NOW}"):
        assert is_text_of(grammar, begin + text)
    assert not is_text_of(grammar, begin + "3")
    assert not is_text_of(grammar, begin + CALL.replace("add", "sub"))
    assert not is_text_of(grammar, begin + CALL.replace("3", '"3"'))


@pytest.mark.parametrize("open_to_more", [None, True])
def test_a_call_has_arguments_of_other_names_only_where_its_schema_says_so(open_to_more: bool | None) -> None:
    schema = {**ADD, **({} if open_to_more is None else {"additionalProperties": open_to_more})}
    tools = [{"type": "function", "function": {"name": "add", "parameters": schema}}]
    grammar = calls_grammar(chat(tools=tools, tool_choice="required"), "hermes", None)
    assert is_text_of(grammar, CALL)
    assert is_text_of(grammar, CALL.replace("3", '3, "b": 4')) is bool(open_to_more)


@pytest.mark.parametrize(
    "choice", [{"type": "function", "function": {"name": "now"}}, {"type": "function", "name": "now"}, {"name": "now"}]
)
def test_a_tool_that_is_named_is_called_once(choice: dict[str, Any]) -> None:
    grammar = calls_grammar(chat(tools=TOOLS, tool_choice=choice), "hermes", None)
    assert is_text_of(grammar, NOW)
    assert not is_text_of(grammar, CALL)
    assert not is_text_of(grammar, f"{NOW}\n{NOW}")


def test_one_call_is_made_where_they_are_not_parallel() -> None:
    grammar = calls_grammar(chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False), "hermes", None)
    assert is_text_of(grammar, CALL)
    assert not is_text_of(grammar, f"{CALL}\n{NOW}")


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_a_call_that_may_be_made_is_no_grammar(choice: str | None) -> None:
    assert calls_grammar(chat(tools=TOOLS, tool_choice=choice), "hermes", None) is None


@pytest.mark.parametrize(
    ("body", "form", "code", "told"),
    [
        ({"tool_choice": "required"}, "hermes", "invalid_value", "there are no tools"),
        (
            {"tools": TOOLS, "tool_choice": {"name": "sub"}},
            "hermes",
            "invalid_value",
            "'sub', which is none",
        ),
        ({"tools": TOOLS, "tool_choice": "always"}, "hermes", "unsupported_parameter", "`required`, or one of"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}},
            "hermes",
            "unsupported_parameter",
            "or one of `tools`",
        ),
        ({"tools": TOOLS, "tool_choice": "required"}, "", "unsupported_parameter", "are not read"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused(body: dict[str, Any], form: str, code: str, told: str) -> None:
    with pytest.raises(Refusal) as refusal:
        calls_grammar(chat(**body), form, None)
    assert (refusal.value.code, refusal.value.param) == (code, "tool_choice")
    assert told in str(refusal.value)


def reader(follows: bool = True) -> Reader:
    return Reader(Limits("run", 64, 8, 256, 20, follows), BYTEWISE, None)


def test_each_completion_of_a_request_follows_its_grammar() -> None:
    asked = reader().completion(completion(guided_choice=["a"], n=2), 0)
    assert [one.grammar for one in asked.requests("r")] == [asked.grammar] * 2
    assert is_text_of(asked.grammar, "a")


def test_an_engine_that_follows_no_grammar_is_asked_for_none() -> None:
    with pytest.raises(Refusal, match="regex asks for text by a grammar") as refusal:
        reader(False).completion(completion(regex="a"), 0)
    assert (refusal.value.code, refusal.value.param) == ("unsupported_parameter", "regex")
    assert reader(False).completion(completion(), 0).grammar is None


def test_vllms_route_of_ids_takes_structured_outputs() -> None:
    body = GenerateRequest(token_ids=[1], sampling_params={"structured_outputs": {"regex": "ab"}})
    grammar = reader().completion(body.completion(Limits("run", 64, 8, 256, 20, True)), 0).grammar
    assert is_text_of(grammar, "ab")
