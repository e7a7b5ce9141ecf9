"""What a client wants the text of an answer to be, as a grammar for an engine. Pure.

Guarantees: what cannot be kept is refused by name, and a grammar that is none is refused before anything is generated.
Thoughts, where they are read, come before the grammar and are free.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from streamrl.conversations import reasoning
from streamrl.conversations.formats import tagged
from streamrl.gateway.openai.bodies import ChatRequest, OpenAIRequest
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.models.grammars import as_lark, fault_of
from streamrl.types import Grammar, GrammarKind

ANY_OBJECT: Final = {"type": "object"}


def grammar_of(body: OpenAIRequest, thinks: bool | None = None) -> Grammar | None:
    """Of the answer's text; None where it is free. thinks: whether it begins within thoughts, None where these are not
    read. Raises Refusal."""
    given = {name: read for name in _READ if (read := _READ[name](getattr(body, name), name)) is not None}
    if len(given) > 1:
        first, second, *_ = given
        raise invalid("invalid_value", f"{first} and {second} are two grammars of one text; send one", second)
    for name, grammar in given.items():
        return _behind_thoughts(_checked(grammar, name), thinks)
    return None


def asking_for_grammar(body: OpenAIRequest) -> Iterator[str]:
    """The parameters of a request that ask for one."""
    if isinstance(body, ChatRequest) and body.tool_choice not in (None, "auto", "none"):
        yield "tool_choice"
    yield from (name for name, read in _READ.items() if read(getattr(body, name), name) is not None)


def calls_grammar(body: ChatRequest, readable: bool, thinks: bool | None) -> Grammar | None:
    """Of the calls that a message must make; None where none must be. readable: whether calls are read in the form that
    is written here. Raises Refusal."""
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        return None
    names = [tool.function.name for tool in body.tools or ()]
    wanted = names if choice == "required" else [_named(choice, names)]
    if not wanted:
        raise invalid("invalid_value", f"tool_choice is {choice!a}, and there are no tools", "tool_choice")
    if not readable:
        what = (
            f"tool_choice is {choice!a}, and this model's calls are not read as JSON objects between <tool_call> marks"
        )
        way_out = "send `auto`, or set gateway.tool_call_parser to `hermes` where it writes them"
        raise invalid("unsupported_parameter", f"{what}: {way_out}", "tool_choice")
    functions = [tool.function for tool in body.tools or () if tool.function.name in wanted]
    # Each is a document of its own: what a schema refers to lies in it.
    objects = [
        as_lark(Grammar(GrammarKind.JSON_SCHEMA, _json(_call_schema(one.name, one.parameters))), f"object{place}")
        for place, one in enumerate(functions)
    ]
    several = choice == "required" and body.parallel_tool_calls is not False
    rules = [
        f"body: call{' (NEWLINES call)*' if several else ''}",
        f"call: {_json(tagged.BEGIN)} NEWLINES? object NEWLINES? {_json(tagged.END)}",
        f"object: {' | '.join(f'object{place}' for place in range(len(objects)))}",
        *objects,
        r"NEWLINES: /\n{1,2}/",
    ]
    return _checked(Grammar(GrammarKind.LARK, "\n".join([_start(thinks), *rules])), "tool_choice")


def _named(choice: str | Mapping[str, Any] | None, names: list[str]) -> str:
    """The one tool that is to be called: as chats name it, or as responses do."""
    if not isinstance(choice, Mapping) or choice.get("type", "function") != "function":
        what = f"tool_choice is {choice!a}; send `auto`, `none`, `required`, or a function of `tools`"
        raise invalid("unsupported_parameter", what, "tool_choice")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    if name not in names:
        told = ", ".join(map(ascii, names)) or "none"
        raise invalid("invalid_value", f"tool_choice names {name!a}, which is none of `tools` ({told})", "tool_choice")
    return str(name)


def _call_schema(name: str, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    arguments = dict(parameters or ANY_OBJECT)
    if "properties" in arguments:
        # A function fails by an argument that it does not have, which few schemas care to forbid.
        arguments.setdefault("additionalProperties", False)
    # What a schema refers to in itself lies where it was written to lie.
    shared = {key: arguments.pop(key) for key in ("$defs", "definitions") if key in arguments}
    properties = {"name": {"const": name}, "arguments": arguments}
    whole = {"type": "object", "properties": properties, "required": ["name", "arguments"]}
    return {**whole, "additionalProperties": False, **shared}


# ---- forms that clients know


def _of_format(given: Mapping[str, Any] | None, name: str) -> Grammar | None:
    kind = None if given is None else given.get("type")
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return _of_schema(ANY_OBJECT, name)
    inner = given.get("json_schema", given)
    if kind == "json_schema" and isinstance(inner, Mapping) and "schema" in inner:
        return _of_schema(inner["schema"], name)
    what = f"{name} of type {kind!a}; send `text`, `json_object`, or `json_schema` with its `schema`"
    raise invalid("unsupported_parameter" if kind != "json_schema" else "invalid_value", what, name)


def _of_schema(given: Any, name: str) -> Grammar | None:
    if given is None:
        return None
    return Grammar(GrammarKind.JSON_SCHEMA, given if isinstance(given, str) else _json(given))


def _of_regex(given: str | None, name: str) -> Grammar | None:
    return Grammar(GrammarKind.REGEX, given) if given else None


def _of_choices(given: list[str] | None, name: str) -> Grammar | None:
    if given is None:
        return None
    if not given or "" in given:
        raise invalid("invalid_value", f"{name} is {given!a}; name one text or more, none of them empty", name)
    return Grammar(GrammarKind.LARK, "start: " + " | ".join(map(_json, given)))


def _of_outputs(given: Mapping[str, Any] | None, name: str) -> Grammar | None:
    """vLLM's `structured_outputs`."""
    asked = {key: value for key, value in (given or {}).items() if value not in (None, False)}
    if not asked:
        return None
    (key, value), *others = asked.items()
    read = _OUTPUTS.get(key)
    if others or read is None:
        what = f"{name} has {', '.join(asked)}; one of {', '.join(_OUTPUTS)} is kept"
        raise invalid("unsupported_parameter", what, name)
    return read(ANY_OBJECT if key == "json_object" else value, name)


_Read = Callable[[Any, str], Grammar | None]
_OUTPUTS: Final[Mapping[str, _Read]] = {
    "json": _of_schema,
    "regex": _of_regex,
    "choice": _of_choices,
    "json_object": _of_schema,
}
_READ: Final[Mapping[str, _Read]] = {
    "response_format": _of_format,
    "structured_outputs": _of_outputs,
    "guided_json": _of_schema,
    "guided_regex": _of_regex,
    "guided_choice": _of_choices,
    "regex": _of_regex,
}
"""What each parameter says of the text."""


# ---- the grammar itself


def _behind_thoughts(grammar: Grammar, thinks: bool | None) -> Grammar:
    if thinks is None:
        return grammar
    return Grammar(GrammarKind.LARK, f"{_start(thinks)}\n{as_lark(grammar, 'body')}")


def _start(thinks: bool | None) -> str:
    """What comes before the body: thoughts that have begun, or may."""
    if thinks is None:
        return "start: body"
    begin, end = ("" if thinks else reasoning.BEGIN), reasoning.END.replace("/", r"\/")
    first = "thoughts" if thinks else "thoughts?"
    return f"start: {first} BLANKS? body\nthoughts[lazy]: /{begin}(?s:.*){end}/\nBLANKS: /\\n{{1,2}}/"


def _json(given: Any) -> str:
    """Of a text: as Lark quotes it, too."""
    return json.dumps(given, ensure_ascii=False)


def _checked(grammar: Grammar, param: str) -> Grammar:
    if fault := fault_of(grammar):
        raise _no_grammar(fault, param)
    return grammar


def _no_grammar(fault: str, param: str) -> Refusal:
    return invalid("invalid_value", f"{param} is no grammar that can be followed: {fault}", param)
