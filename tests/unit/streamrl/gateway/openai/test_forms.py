"""In which forms a request has its answers read, and what a grammar can then be of."""

from typing import Any

import pytest
from support.engines.bytewise import BYTEWISE
from support.engines.calling_model import TEMPLATE, TOOL

from streamrl.conversations.formats import deepseek
from streamrl.conversations.memory import Memory, message_key
from streamrl.conversations.tool_calls import ParsedMessage, ToolCall
from streamrl.gateway.openai.bodies import ChatRequest
from streamrl.gateway.openai.chat import ChatTemplate
from streamrl.gateway.openai.requests import Limits, Reader
from streamrl.gateway.refusal import Refusal
from streamrl.models import chat_template

CODER = TEMPLATE.replace("<tool_call>{", "<tool_call><function= {")
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}


def reader(template: str = TEMPLATE, **parsers: str) -> Reader:
    limits = Limits("run", 2048, 8, 256, 20, follows_grammars=True)
    return Reader(limits, BYTEWISE, ChatTemplate(chat_template.ChatTemplate(template)), **parsers)


def chat(**body: Any) -> ChatRequest:
    return ChatRequest(**{"model": "run", "messages": [{"role": "user", "content": "1"}], "max_tokens": 8, **body})


@pytest.mark.parametrize(
    ("template", "parser", "form"),
    [
        (TEMPLATE, "auto", "hermes"),
        (TEMPLATE, "mistral", "mistral"),
        (TEMPLATE, "none", ""),
        (CODER, "auto", "qwen3_coder"),
        (CODER, "hermes", "hermes"),
        ("{{ tools }}", "auto", ""),
        ("{# <tool_call> #}", "auto", ""),
    ],
)
def test_the_form_is_the_templates_unless_it_is_named(template: str, parser: str, form: str) -> None:
    found = reader(template, tool_call_parser=parser)
    assert found.forms.calls == form
    if "tools" in template:
        asked = found.chat(chat(tools=[TOOL]), 0)
        assert (asked.tools is not None, asked.call_form) == (bool(form), form or "hermes")
        assert found.chat(chat(tools=[TOOL], tool_choice="none"), 0).tools is None


@pytest.mark.parametrize(
    ("parser", "end", "thinks"),
    [
        ("none", "<think>", None),
        ("think", "<think>\n", True),
        ("think", "[THINK]", False),
        ("mistral", "[THINK]", True),
        ("mistral", "<think>", False),
        ("openai_gptoss", "<|start|>assistant", False),
        ("openai_gptoss", "<|channel|>analysis<|message|>", True),
    ],
)
def test_an_answer_begins_within_thoughts_where_its_prompt_began_them(
    parser: str, end: str, thinks: bool | None
) -> None:
    asked = reader("{{ messages[0].content }}" + end, reasoning_parser=parser).chat(chat(), 0)
    assert asked.thinks is thinks
    assert asked.thought_form == (parser if thinks is not None else "think")


@pytest.mark.parametrize(
    ("parser", "header", "content", "thinks"),
    [
        ("none", "", "<think>hm", None),
        ("think", "", "hm", False),
        ("think", "", "<think>hm", True),
        ("think", "", "<think>hm</think>2", False),
        ("think", "", "<think>a</think><think>b", False),
        ("think", "", "2 <think>b", False),
        ("think", "<think>", "hm</think>2<think>", False),
        (
            "openai_gptoss",
            "",
            "<|channel|>final<|message|>2<|end|><|start|>assistant<|channel|>analysis<|message|>b",
            True,
        ),
        ("think", "<think>\n", "hm", True),
        ("think", "<think>", "hm</think>2", False),
        ("think", "<think></think>", "2", False),
        ("mistral", "", "[THINK]hm", True),
        ("mistral", "", "[THINK]hm[/THINK]", False),
        ("openai_gptoss", "<|channel|>final<|message|>", "2", False),
        ("openai_gptoss", "<|channel|>analysis<|message|>", "hm", True),
        ("openai_gptoss", "", "<|channel|>analysis<|message|>hm<|end|>", False),
    ],
)
def test_a_message_that_goes_on_says_whether_its_thoughts_do(
    parser: str, header: str, content: str, thinks: bool | None
) -> None:
    # The mark of the user's turn is none of the message that goes on.
    template = "{{ messages[0].content }};" + header + "{{ messages[-1].content }}"
    turns = [{"role": "user", "content": "<think>"}, {"role": "assistant", "content": content}]
    asked = reader(template, reasoning_parser=parser).chat(chat(messages=turns, continue_final_message=True), 0)
    assert asked.thinks is thinks


@pytest.mark.parametrize("body", [{}, {"skip_special_tokens": True}, {"skip_special_tokens": None}])
def test_special_tokens_are_no_text_unless_that_is_asked_for(body: dict[str, Any]) -> None:
    assert reader(tool_call_parser="none").chat(chat(**body), 0).written == frozenset()


def test_developers_speak_as_the_system_to_a_template_that_has_no_role_for_them() -> None:
    body = chat(messages=[{"role": "developer", "content": "x"}, {"role": "user", "content": "1"}])
    lists = "{% for one in messages %}{{ one.role }};{% endfor %}"
    assert reader(lists).prompt_of(body).text == "system;user;"
    assert reader(lists + "{# 'developer' #}").prompt_of(body).text == "developer;user;"


def test_a_call_in_the_form_before_tools_is_a_call_and_its_result_that_of_a_tool() -> None:
    call = {"name": "add", "arguments": '{"a": 1}'}
    said = {"role": "assistant", "content": None, "function_call": call}
    result = {"role": "function", "name": "add", "content": "2"}
    template = (
        "{% for one in messages %}{{ one.role }}{% for call in one.tool_calls %} {{ call.function.name }}"
        "({{ call.function.arguments.a }}){% endfor %};{% endfor %}{# content #}"
    )
    assert reader(template).prompt_of(chat(messages=[said, result])).text == "assistant add(1);tool;"
    calls = [{"id": "c", "type": "function", "function": {**call, "name": "take"}}]
    for one in (None, call):  # clients send a null of the one form beside the other
        both = {**said, "function_call": one, "tool_calls": calls}
        assert reader(template).prompt_of(chat(messages=[both, result])).text == "assistant take(1);tool;"


def test_a_refusal_is_a_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    body = chat(messages=[{"role": "assistant", "content": parts}])
    assert reader("{{ messages[0].content }}").prompt_of(body).text == "ab"


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({}, ""),
        ({"reasoning_effort": "none"}, "none False"),
        ({"reasoning_effort": "low"}, "low True"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, "low False"),
    ],
)
def test_an_effort_says_whether_a_template_is_to_have_thoughts(asked: dict[str, Any], text: str) -> None:
    template = "{% if enable_thinking is defined %}{{ reasoning_effort }} {{ enable_thinking }}{% endif %}"
    assert reader(template + "{# content #}").prompt_of(chat(**asked)).text == text


def test_calls_are_written_by_a_grammar_in_the_form_in_which_they_are_read() -> None:
    body = chat(tools=[TOOL], tool_choice="required")
    begins = {"mistral": "[TOOL_CALLS]", "hermes": "<tool_call>", "deepseek_v31": deepseek.SECTION}
    for parser, begin in begins.items():
        found = reader(tool_call_parser=parser).chat(body, 0).grammar
        assert found is not None
        assert begin in found.text
    for template, parsers in ((TEMPLATE, {"tool_call_parser": "none"}), ("{{ tools }}", {})):
        with pytest.raises(Refusal, match=r"tool_choice is 'required'.*send `auto`, or set gateway\.tool_call_parser"):
            reader(template, **parsers).chat(body, 0)


@pytest.mark.parametrize("parser", ["mistral", "openai_gptoss"])
@pytest.mark.parametrize(
    ("param", "body"), [("response_format", {"response_format": SCHEMA}), ("tool_choice", {"tool_choice": "required"})]
)
def test_a_grammar_comes_behind_thoughts_of_one_form_alone(parser: str, param: str, body: dict[str, Any]) -> None:
    with pytest.raises(
        Refusal, match=f"{param} .*{parser}.* reasoning_parser to `think` or `none`".replace(" r", ".r")
    ):
        reader(reasoning_parser=parser).chat(chat(tools=[TOOL], **body), 0)
    assert reader(reasoning_parser="think").chat(chat(tools=[TOOL], **body), 0).grammar is not None
    assert reader(reasoning_parser=parser).chat(chat(tools=[TOOL]), 0).grammar is None


def test_a_template_that_takes_no_call_as_a_text_is_given_the_call() -> None:
    call = ToolCall("123456789", "add", '{"a":1}')
    memory = Memory((), {message_key(ParsedMessage("", (call,))): "[TOOL_CALLS]add[ARGS]{}"})
    function = {"name": "add", "arguments": '{"a": 1}'}
    said = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call.id, "type": "function", "function": function}],
    }
    body = chat(messages=[{"role": "user", "content": "1"}, said, {"role": "tool", "content": "2"}])
    counts = (
        "{% for one in messages %}{% if one.role == 'assistant' and not one.tool_calls %}{{ raise_exception('turns') }}"
    )
    assert reader().prompt_of(body, memory).text.count("[TOOL_CALLS]add[ARGS]{}") == 1
    text = reader(counts + "{% endif %}{% endfor %}" + TEMPLATE).prompt_of(body, memory).text
    assert text == reader().prompt_of(body).text
    with pytest.raises(Refusal, match="turns"):
        reader(counts + "{% endif %}{% endfor %}" + TEMPLATE).prompt_of(
            chat(messages=[{"role": "assistant", "content": "x"}])
        )
