"""What a client wants the text of an answer to be, as a grammar for an engine. Pure.

Guarantees: what cannot be kept is refused by name, and a grammar that is none is refused before anything is generated.
Thoughts, where they are read, come before the grammar and are free.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from streamrl.conversations import reasoning
from streamrl.gateway.openai.bodies import ChatRequest, OpenAIRequest
from streamrl.gateway.openai.call_grammars import ANY_OBJECT, Mark, Tool, call_rules, fault_of_names, quoted
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.models.grammars import as_lark, fault_of
from streamrl.types import Grammar, GrammarKind


def grammar_of(body: OpenAIRequest, thinks: bool | None = None, mark: Mark = quoted) -> Grammar | None:
    """Of the answer's text; None where it is free. thinks: whether it begins within thoughts, None where these are not
    read. mark: of thoughts, as it stands in a grammar. Raises Refusal."""
    given = {name: read for name in _READ if (read := _READ[name](getattr(body, name), name)) is not None}
    if len(given) > 1:
        first, second, *_ = given
        raise invalid("invalid_value", f"{first} and {second} are two grammars of one text; send one", second)
    for name, grammar in given.items():
        return _behind_thoughts(_checked(grammar, name), thinks, mark)
    return None


def asking_for_grammar(body: OpenAIRequest) -> Iterator[str]:
    """The parameters of a request that ask for one."""
    if isinstance(body, ChatRequest) and body.tool_choice not in (None, "auto", "none"):
        yield "tool_choice"
    yield from (name for name, read in _READ.items() if read(getattr(body, name), name) is not None)


def calls_grammar(body: ChatRequest, form: str, thinks: bool | None, mark: Mark = quoted) -> Grammar | None:
    """Of the calls that a message must make; None where none must be. form: in which calls are read; "" where they are
    not. mark: as of `grammar_of`. Raises Refusal."""
    choice = body.tool_choice
    if choice in (None, "auto", "none"):
        return None
    names = [tool.name for tool in body.tools or ()]
    wanted = names if choice == "required" else [named_tool(choice, names)]
    if not wanted:
        raise invalid("invalid_value", f"tool_choice is {choice!a}, and there are no tools", "tool_choice")
    if not form:
        what = f"tool_choice is {choice!a}, and this model's calls are not read"
        raise invalid("unsupported_parameter", f"{what}: send `auto`, or set gateway.tool_call_parser", "tool_choice")
    functions = [tool.function for tool in body.functions() if tool.name in wanted]
    tools = [Tool(one.name, one.parameters or ANY_OBJECT) for one in functions]
    if fault := fault_of_names(form, tools):
        raise invalid("unsupported_parameter", f"tool_choice is {choice!a}, and {fault}", "tool_choice")
    several = choice == "required" and body.parallel_tool_calls is not False
    rules = [_start(thinks, mark), *call_rules(form, tools, several, mark)]
    return _checked(Grammar(GrammarKind.LARK, "\n".join(rules)), "tool_choice")


def named_tool(choice: Any, names: list[str]) -> str:
    """The one of `names` that is named, as chats or as responses do. Raises Refusal."""
    kind = choice.get("type", "function") if isinstance(choice, Mapping) else None
    if kind not in ("function", "custom"):
        what = f"tool_choice is {choice!a}; send `auto`, `none`, `allowed_tools`, `required`, or one of `tools`"
        raise invalid("unsupported_parameter", what, "tool_choice")
    function = choice.get(kind)
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    if name not in names:
        told = ", ".join(map(ascii, names)) or "none"
        raise invalid("invalid_value", f"tool_choice names {name!a}, which is none of `tools` ({told})", "tool_choice")
    return str(name)


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
    return Grammar(GrammarKind.JSON_SCHEMA, given if isinstance(given, str) else quoted(given))


def _of_regex(given: str | None, name: str) -> Grammar | None:
    return Grammar(GrammarKind.REGEX, given) if given else None


def _of_choices(given: list[str] | None, name: str) -> Grammar | None:
    if given is None:
        return None
    if not given or "" in given:
        raise invalid("invalid_value", f"{name} is {given!a}; name one text or more, none of them empty", name)
    return Grammar(GrammarKind.LARK, "start: " + " | ".join(map(quoted, given)))


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


def _behind_thoughts(grammar: Grammar, thinks: bool | None, mark: Mark) -> Grammar:
    if thinks is None:
        return grammar
    return Grammar(GrammarKind.LARK, f"{_start(thinks, mark)}\n{as_lark(grammar, 'body')}")


def _start(thinks: bool | None, mark: Mark) -> str:
    """What comes before the body: thoughts that have begun, or may."""
    if thinks is None:
        return "start: body"
    begin, end = ("" if thinks else f"{mark(reasoning.BEGIN)} "), mark(reasoning.END)
    first = f"{begin}thoughts" if thinks else f"({begin}thoughts)?"
    spelled = end == quoted(reasoning.END)
    inside = f"[lazy]: /(?s:.*){reasoning.END.replace('/', chr(92) + '/')}/" if spelled else f": THOUGHTS {end}"
    rest = "" if spelled else "\nTHOUGHTS: /(?s:.*)/"
    return f"start: {first} BLANKS? body\nthoughts{inside}{rest}\nBLANKS: /\\n{{1,2}}/"


def _checked(grammar: Grammar, param: str) -> Grammar:
    if fault := fault_of(grammar):
        raise _no_grammar(fault, param)
    return grammar


def _no_grammar(fault: str, param: str) -> Refusal:
    return invalid("invalid_value", f"{param} is no grammar that can be followed: {fault}", param)
