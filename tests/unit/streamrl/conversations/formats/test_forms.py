"""Tool calls in the forms of the usual families: what is read, in whatever pieces it comes, and what stays text."""

import json
import random
import secrets
from typing import Any, get_args, get_type_hints

import pytest

from streamrl.config.schema.run import GatewayConfig
from streamrl.conversations.formats.choose import CALL_FORMS, THOUGHT_FORMS, call_form_of
from streamrl.conversations.tool_calls import MessageReader, ParsedMessage

SCHEMA = {"properties": {"a": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": "object"}}}
TOOLS = {"add": SCHEMA, "now": None}
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"a": 1},
    {"a": -3, "o": {"x": [1, {"y": None}], "z": [[], {}]}, "s": 'ü "}]" \\ 漢字 😀'},
    {"s": "<｜tool▁call▁begin｜> ]; {", "a": 10},  # noqa: RUF001
    {},
)


def hermes(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def coder(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(f"<parameter={key}>\n{raw(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def glm(name: str, arguments: dict[str, Any]) -> str:
    pairs = arguments.items()
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{raw(value)}</arg_value>\n" for key, value in pairs)
    return f"<tool_call>{name}\n{inner}</tool_call>"


def raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def llama(name: str, arguments: dict[str, Any]) -> str:
    return f"<|python_tag|>{json.dumps({'name': name, 'parameters': arguments}, ensure_ascii=False)}"


def pythonic(name: str, arguments: dict[str, Any]) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    return f"<|python_start|>[{name}({given})]<|python_end|>"


def mistral_list(name: str, arguments: dict[str, Any]) -> str:
    return f"[TOOL_CALLS] {json.dumps([{'name': name, 'arguments': arguments}])}"


def mistral(name: str, arguments: dict[str, Any]) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}"


def deepseek_v3(name: str, arguments: dict[str, Any]) -> str:
    return deepseek(f"function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```")  # noqa: RUF001


def deepseek_v31(name: str, arguments: dict[str, Any]) -> str:
    return deepseek(f"{name}<｜tool▁sep｜>{json.dumps(arguments)}")  # noqa: RUF001


def deepseek(body: str) -> str:
    call = f"<｜tool▁call▁begin｜>{body}<｜tool▁call▁end｜>"  # noqa: RUF001
    return f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"  # noqa: RUF001


def harmony(name: str, arguments: dict[str, Any]) -> str:
    header = f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return f"{header}{json.dumps(arguments)}<|call|>"


WRITTEN = [
    ("hermes", hermes),
    ("qwen3_coder", coder),
    ("hermes", coder),
    ("glm45", glm),
    ("llama3_json", llama),
    ("pythonic", pythonic),
    ("llama4_pythonic", pythonic),
    ("mistral", mistral_list),
    ("mistral", mistral),
    ("deepseek_v3", deepseek_v3),
    ("deepseek_v31", deepseek_v31),
    ("openai", harmony),
]
each_form = pytest.mark.parametrize(("form", "write"), WRITTEN)


def reader(form: str, **options: Any) -> MessageReader:
    return MessageReader("n", TOOLS, call_form=form, **options)


def said(form: str, text: str, finish_reason: str = "stop") -> ParsedMessage:
    return reader(form).parse(0, text, finish_reason)


def calls(message: ParsedMessage) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in message.calls]


def in_pieces(form: str, text: str, cuts: random.Random | None, finish_reason: str) -> ParsedMessage:
    """cuts: None for letter by letter."""
    stream, message = reader(form).stream(0), ParsedMessage("")
    while text:
        count = 1 if cuts is None else cuts.choice((1, 1, 2, 3, 7, 40))
        message += stream.feed(text[:count])
        text = text[count:]
    return message + stream.flush(finish_reason)


@each_form
@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_a_call_is_read_behind_a_text(form: str, write: Any, arguments: dict[str, Any]) -> None:
    message = said(form, f"I add.\n\n{write('add', arguments)}\n")
    assert (message.content, calls(message)) == ("I add.", [("add", arguments)])
    assert in_pieces(form, f"I add.\n\n{write('add', arguments)}\n", None, "stop") == message


@each_form
def test_several_calls_are_read_in_their_order_and_have_ids_of_their_own(form: str, write: Any) -> None:
    message = said(form, "\n".join(write("add", {"a": number}) for number in range(3)) + write("nobody", {}))
    assert calls(message) == [*(("add", {"a": number}) for number in range(3)), ("nobody", {})]
    assert len({call.id for call in message.calls}) == 4
    assert message.content == ""


@each_form
def test_without_parallel_calls_the_first_one_is_shown_alone(form: str, write: Any) -> None:
    text = write("add", {"a": 1}) + write("add", {"a": 2})
    assert calls(reader(form, parallel=False).parse(0, text, "stop")) == [("add", {"a": 1})]


@each_form
def test_a_call_that_is_cut_off_stays_text(form: str, write: Any) -> None:
    text = write("add", {"a": 1, "s": "long"})
    for length in range(text.index("add") + 3, text.index("long") + 4):
        message = said(form, text[:length], "length")
        assert (message.content, message.calls) == (text[:length], ())


BROKEN = {
    "glm45": (
        *("<tool_call>two words</tool_call>", "<tool_call></tool_call>", "<tool_call>f<arg_key>a</tool_call>"),
        *("<tool_call>f<arg_key>a</arg_key></tool_call>", "<tool_call>f<arg_key>a</arg_key>1</tool_call>"),
        *(
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value>2</tool_call>",
            '<tool_call>{"name": "f"}</tool_call>',
        ),
    ),
    "llama3_json": (
        *('{"name": "Bob", "age": 7}', '{"a": 1}', '<|python_tag|>print("hi")', '{"name": "f", "parameters": [1]}'),
        *('{"name": "f", "parameters": {}', '{"name": }', 'So: {"name": "f", "parameters": {}}', "<|python_tag|>"),
        *('{"name": 3, "parameters": {}}', '; {"name": "f", "parameters": {}}', "<|python", "{", "}", "[]"),
    ),
    "pythonic": (
        *("[f(1)]", "[f(a=g())]", "[f(a=x)]", "[f(**{})]", "[f(a=1e999)]", "[f(a={1: 2})]", "[f(a=b'x')]", "[f(a=1]"),
        *("[1, 2]", "[f]", "[f(), 2]", "[f(a=(1))", "See [f(a=1)]", "[f(a={1})]", "[f(a=1+1)]", "[f()()]", "[]", "["),
        *("[f(a='\\ud800')]", f"[f(a={'9' * 5000})]", f"[f(a={'[' * 10**4}{']' * 10**4})]"),
        *("<|python_start|>print(1)<|python_end|>", "[f(a=...)]", "[f(a='\\d', b=g)]"),
    ),
    "mistral": (
        *(
            "[TOOL_CALLS]",
            "[TOOL_CALLS] hello world",
            "[TOOL_CALLS] []",
            '[TOOL_CALLS] [{"name": "f"}, 1]',
            "[TOOL_CALLS][",
        ),
        *("[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS]f[ARGS][1]", "[TOOL_CALLS]f[ARGS]{1}", "[TOOL_CALLS]f[OTHER]{}", "[TOOL"),
        *('[{"name": "f", "arguments": {}}]', '[TOOL_CALLS] {"name": "f", "arguments": "x"}'),
    ),
    "deepseek_v3": (
        deepseek("function<｜tool▁sep｜>f\n{}"),  # noqa: RUF001
        deepseek("function<｜tool▁sep｜>f\n```json\n{\n```"),  # noqa: RUF001
        deepseek("function<｜tool▁sep｜>\n```json\n{}\n```"),  # noqa: RUF001
        *(deepseek("hello"), "<｜tool▁calls▁begin｜>hello", "<｜tool▁calls▁end｜>", "<｜tool▁calls▁begin｜> <"),  # noqa: RUF001
    ),
    "deepseek_v31": (
        deepseek("f<｜tool▁sep｜>[1]"),  # noqa: RUF001
        deepseek("f<｜tool▁sep｜>"),  # noqa: RUF001
        deepseek("<｜tool▁sep｜>{}"),  # noqa: RUF001
        deepseek("f{}"),
    ),
    "openai": (
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{<|call|>",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>[1]<|call|>",
        "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
        "<|channel|>commentary to=functions.f <|end|>",
        "<|channel|>commentary to=functions.f",
        *("to=functions.f", "to=5 is it", "to", "<|chan"),
    ),
}


@pytest.mark.parametrize(("form", "text"), [(form, text) for form, texts in BROKEN.items() for text in texts])
def test_what_is_no_call_stays_text_unchanged(form: str, text: str) -> None:
    for finish_reason in ("stop", "length"):
        assert said(form, text, finish_reason) == ParsedMessage(text)
        assert in_pieces(form, text, None, finish_reason) == ParsedMessage(text)


NOW: tuple[str, Any] = ("now", {})
READ = {
    "hermes": (('<tool_call>{"name": "add", "arguments": {"a": 1}}', [("add", {"a": 1})]),),
    "glm45": (
        ("<tool_call>now</tool_call>", [("now", {})]),
        ("<tool_call>add<arg_key>s</arg_key><arg_value>1</arg_value></tool_call>", [("add", {"s": "1"})]),
        ("<tool_call>add<arg_key>a</arg_key><arg_value>x</arg_value></tool_call>", [("add", {"a": "x"})]),
    ),
    "llama3_json": (
        (' {"name": "add", "parameters": {"a": 1}}', [("add", {"a": 1})]),
        ('{"name": "add", "arguments": "{\\"a\\": 1}"}', [("add", {"a": 1})]),
        ('{"type": "function", "name": "add", "parameters": {}}', [("add", {})]),
        ('{"name": "add", "parameters": {"s": "};"}}; {"name": "now", "parameters": {}}', [("add", {"s": "};"}), NOW]),
        ('{"name":"now","parameters":{}}\n<|python_tag|>{"name":"now","parameters":{}}', [("now", {}), ("now", {})]),
    ),
    "pythonic": (
        ('[add(a=1, s="x"), a.now()]', [("add", {"a": 1, "s": "x"}), ("a.now", {})]),
        (" [add(s=\"it's ]\", o={'x': [True, false, null, None, -1.5, (1,)]})]\n", None),
        ("[add(s='\\d')]", [("add", {"s": "\\d"})]),
    ),
    "mistral": (
        ('[TOOL_CALLS] {"name": "add", "arguments": {"a": 1}}', [("add", {"a": 1})]),
        ('[TOOL_CALLS][{"name":"add","arguments":{"s":"]"},"id":"x"},{"name":"now"}]', [("add", {"s": "]"}), NOW]),
        ('[TOOL_CALLS]add[CALL_ID]Vj12345ab[ARGS]{"s": "[TOOL_CALLS]"}', [("add", {"s": "[TOOL_CALLS]"})]),
        ('[TOOL_CALLS]add{"a": 1}[TOOL_CALLS]now[ARGS]{}', [("add", {"a": 1}), ("now", {})]),
    ),
    "deepseek_v31": (
        (deepseek('add<｜tool▁sep｜>{"a": 1}').split("<｜tool▁call▁end｜>")[0], [("add", {"a": 1})]),  # noqa: RUF001
        (deepseek("now<｜tool▁sep｜>{}<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}"), [NOW] * 2),  # noqa: RUF001
    ),
    "deepseek_v3": (
        (deepseek("function<｜tool▁sep｜>add\n```json\n{\"s\": \"```\"}\n```"), [("add", {"s": "```"})]),  # noqa: RUF001
    ),
    "openai": (
        ("<|channel|>commentary to=functions.now<|message|><|call|>", [("now", {})]),
        (' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>', [("add", {"a": 1})]),
        ('<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{"a": 1}', [("add", {"a": 1})]),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("form", "text", "made"), [(form, *one) for form, every in READ.items() for one in every])
def test_what_families_write_is_read(form: str, text: str, made: list[tuple[str, Any]] | None) -> None:
    message = said(form, text)
    assert (message.content, calls(message)) == (
        "",
        made or [("add", {"s": "it's ]", "o": {"x": [True, False, None, None, -1.5, [1]]}})],
    )
    assert in_pieces(form, text, None, "stop") == message


def test_a_broken_call_among_others_keeps_its_own_marks_alone() -> None:
    text = deepseek("f<｜tool▁sep｜>[]<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}") + " Done"  # noqa: RUF001
    message = said("deepseek_v31", text)
    broken = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>[]<｜tool▁call▁end｜>"  # noqa: RUF001
    assert (message.content, calls(message)) == (f"{broken} Done", [("now", {})])


@each_form
def test_random_texts_are_read_the_same_in_whatever_pieces_they_come(form: str, write: Any) -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    whole = write("add", {"s": "[x]", "a": 1})
    parts = [*CALL_FORMS[form].marks, whole[: len(whole) // 2], whole[len(whole) // 2 :]]
    words = [whole, write("now", {}), *parts, "<", "[", "{", "}", "]", '"', "'", "\\", " ", "\n", ";", "hi", "to=", "("]
    read = 0
    for _ in range(1500):
        text, finish_reason = "".join(rng.choices(words, k=rng.randrange(9))), rng.choice(("stop", "length"))
        message = said(form, text, finish_reason)
        assert in_pieces(form, text, rng, finish_reason) == message, text
        assert message.calls or message.content == text or form == "openai"
        read += len(message.calls)
    assert read > 200


def test_ids_are_of_the_kind_that_mistrals_templates_take() -> None:
    text = mistral("now", {}) * 2
    messages = [MessageReader(name, TOOLS, call_form="mistral").parse(at, text, "") for name in "ab" for at in (0, 1)]
    ids = {call.id for message in messages for call in message.calls}
    assert len(ids) == 8
    assert all(len(one) == 9 and one.isalnum() and one.isascii() for one in ids)


TEMPLATES = {
    "hermes": "... <tool_call></tool_call> XML tags: <tool_call>\\n{\"name\": <function-name>",
    "qwen3_coder": "<tool_call>\\n<function=example_function_name>\\n<parameter=example_parameter_1>",
    "glm45": "<tool_call>{function-name}\\n<arg_key>{arg-key-1}</arg_key>\\n<arg_value>",
    "llama3_json": 'Respond in the format {"name": function name, "parameters": dictionary of argument name and value}',
    "pythonic": "[func_name1(params_name1=params_value1, params_name2=params_value2...), func_name2(params)]",
    "llama4_pythonic": "[func_name1(params_name1=params_value1), func_name2(params)] <|python_start|><|python_end|>",
    "mistral": "{{- '[TOOL_CALLS] [' }}",
    "deepseek_v3": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + '\\n' + '```json' + '\\n'",  # noqa: RUF001
    "deepseek_v31": "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + '<｜tool▁sep｜>'",  # noqa: RUF001
    "openai": "<|start|>assistant to=functions.{{ name }}<|channel|>commentary json<|message|>",
    "": "{{ tools | tojson }}",
}  # fmt: skip


@pytest.mark.parametrize("form", TEMPLATES)
def test_a_template_asks_for_its_form(form: str) -> None:
    assert call_form_of(TEMPLATES[form]) == form


def test_the_configuration_has_every_form_by_its_name() -> None:
    hints = get_type_hints(GatewayConfig)
    assert (
        set(get_args(hints["tool_call_parser"])) == {"auto", "none", *CALL_FORMS} == {"auto", "none", *TEMPLATES} - {""}
    )
    assert set(get_args(hints["reasoning_parser"])) == {"none", *THOUGHT_FORMS}
