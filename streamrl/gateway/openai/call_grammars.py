"""Calls that a message must make, as a grammar in the form in which the model's calls are read. Pure.

Guarantees: what follows the grammar is read as calls of the tools, with arguments of their schemas. A mark that is a
token of the model is written as that token, as the model learned it, and never spelled.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from streamrl.conversations.formats import deepseek, harmony, mistral, pythonic, tagged
from streamrl.models.grammars import as_lark
from streamrl.types import Grammar, GrammarKind

ANY_OBJECT: Final = {"type": "object"}
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PYTHON_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_SHARED: Final = ("$defs", "definitions")
"""Where what a schema refers to in itself lies."""
Mark = Callable[[str], str]
"""A mark as it stands in a rule."""


class Tool(NamedTuple):
    """parameters: the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any]


class Rules:
    """The rules of one grammar: each schema is one of its own, since what it refers to lies in it."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self._written: list[str] = []

    def json(self, schema: Any) -> str:
        """The name of a rule for JSON of a schema."""
        name = f"json{len(self._written)}"
        self._written.append(as_lark(Grammar(GrammarKind.JSON_SCHEMA, quoted(schema)), name))
        return name

    def text_before(self, end: str) -> str:
        """The name of a rule for any text up to a mark, which is part of it."""
        name = f"text{len(self._written)}"
        if self.mark(end) == quoted(end):
            self._written.append(f"{name}[lazy]: /(?s:.*){re.escape(end).replace('/', chr(92) + '/')}/")
        else:
            self._written.append(f"{name}: ANYTHING {self.mark(end)}\nANYTHING: /(?s:.*)/")
        return name

    def written(self) -> list[str]:
        return list(dict.fromkeys("\n".join(self._written).splitlines()))


def marks_of(ids: Mapping[str, int]) -> Mark:
    """ids: of the marks that are tokens of the model."""
    return lambda text: f"<[{ids[text]}]>" if text in ids else quoted(text)


def quoted(given: Any) -> str:
    """JSON of it. Of a text: as Lark quotes it, too."""
    return json.dumps(given, ensure_ascii=False)


def fault_of_names(form: str, tools: Sequence[Tool]) -> str:
    """Why calls of these tools cannot be written in a form; "" where they can."""
    pattern = {"pythonic": _PYTHON_NAME, "llama4_pythonic": _PYTHON_NAME}.get(form, _PLAIN_NAME)
    if form in _NAMES_IN_JSON:
        return ""
    names = [tool.name for tool in tools]
    if form in _NAMED_ARGUMENTS:
        names += [key for tool in tools for key in _properties(tool)]
    bad = next((name for name in names if not pattern.fullmatch(name)), None)
    return "" if bad is None else f"{bad!a} cannot be written in the form {form!a}, which has letters, digits and _"


def call_rules(form: str, tools: Sequence[Tool], several: bool, mark: Mark) -> list[str]:
    """Lark's rules of `body`. several: it may have more than one call."""
    rules = Rules(mark)
    body = _FORMS[form](rules, tools, several)
    return [f"body: {body}", *rules.written(), r"NEWLINES: /\n{1,2}/"]


# ---- what all forms have


def arguments_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A function fails by an argument that it does not have, which few schemas care to forbid."""
    arguments = dict(parameters or ANY_OBJECT)
    if "properties" in arguments:
        arguments.setdefault("additionalProperties", False)
    return arguments


def _object(tool: Tool, key: str) -> dict[str, Any]:
    """Of a call that is an object with the name in it."""
    arguments = arguments_schema(tool.parameters)
    shared: dict[str, Any] = {name: arguments.pop(name) for name in _SHARED if name in arguments}
    properties = {"name": {"const": tool.name}, key: arguments}
    whole = {"type": "object", "properties": properties, "required": ["name", key]}
    return {**whole, "additionalProperties": False, **shared}


def _properties(tool: Tool) -> dict[str, Any]:
    given = tool.parameters.get("properties")
    return dict(given) if isinstance(given, Mapping) else {}


def _inner(tool: Tool, schema: Any) -> Any:
    """The schema of one argument, with what it may refer to."""
    shared = {name: tool.parameters[name] for name in _SHARED if name in tool.parameters}
    return {**schema, **shared} if isinstance(schema, Mapping) else schema


def _each(tools: Sequence[Tool], rule: Callable[[Tool], str]) -> str:
    return "(" + " | ".join(map(rule, tools)) + ")"


def _joined(call: str, several: bool, between: str = "") -> str:
    return f"{call} ({between} {call})*" if several else call


def _named_arguments(tool: Tool, one: Callable[[str, Any], str]) -> str:
    """Those that must be there, and others that may be, in the order of the schema."""
    required = tool.parameters.get("required")
    must = set(required) if isinstance(required, list) else set()
    rules = [(key in must, one(key, schema)) for key, schema in _properties(tool).items()]
    return " ".join(rule if needed else f"({rule})?" for needed, rule in rules)


def _is_text(schema: Any) -> bool:
    """As `streamrl.conversations.formats.values.typed` reads it."""
    return not isinstance(schema, Mapping) or schema.get("type") in (None, "string")


def _value(rules: Rules, tool: Tool, schema: Any, before: str, end: str) -> str:
    """A value without quotes, and the mark behind it. before: stands between the two."""
    closed = f"{quoted(before)} {rules.mark(end)}" if before else rules.mark(end)
    given = schema.get("enum") if isinstance(schema, Mapping) else None
    if _is_text(schema) and isinstance(given, list) and given and all(isinstance(one, str) and one for one in given):
        return f"({' | '.join(map(quoted, given))}) {closed}"
    return rules.text_before(end) if _is_text(schema) else f"{rules.json(_inner(tool, schema))} {closed}"


# ---- the forms


def _hermes(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    one = _each(tools, lambda tool: rules.json(_object(tool, "arguments")))
    call = f"{rules.mark(tagged.BEGIN)} NEWLINES? {one} NEWLINES? {rules.mark(tagged.END)}"
    return _joined(f"({call})", several, "NEWLINES")


def _coder(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    def argument(tool: Tool, key: str, schema: Any) -> str:
        end = _value(rules, tool, schema, "\n", "</parameter>")
        return f"{quoted(f'<parameter={key}>{chr(10)}')} {end} NEWLINES"

    def call(tool: Tool) -> str:
        arguments = _named_arguments(tool, lambda key, schema: argument(tool, key, schema))
        return f"{quoted(f'<function={tool.name}>{chr(10)}')} {arguments} {quoted('</function>')}"

    whole = f"{rules.mark(tagged.BEGIN)} NEWLINES {_each(tools, call)} NEWLINES {rules.mark(tagged.END)}"
    return _joined(f"({whole})", several, "NEWLINES")


def _glm(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    mark = rules.mark

    def argument(tool: Tool, key: str, schema: Any) -> str:
        value = _value(rules, tool, schema, "", tagged.VALUE_END)
        return (
            f"{mark(tagged.KEY)} {quoted(key)} {mark(tagged.KEY_END)} NEWLINES? {mark(tagged.VALUE)} {value} NEWLINES?"
        )

    def call(tool: Tool) -> str:
        arguments = _named_arguments(tool, lambda key, schema: argument(tool, key, schema))
        return f"{quoted(tool.name)} NEWLINES? {arguments}"

    whole = f"{mark(tagged.BEGIN)} {_each(tools, call)} {mark(tagged.END)}"
    return _joined(f"({whole})", several, "NEWLINES?")


def _llama(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    return _joined(_each(tools, lambda tool: rules.json(_object(tool, "parameters"))), several, quoted("; "))


def _mistral(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    """Models whose tokens have a mark before the arguments write names before them, others a list."""
    begin, arguments = rules.mark(mistral.BEGIN), rules.mark(mistral.ARGS)
    if arguments == quoted(mistral.ARGS):
        one = _each(tools, lambda tool: rules.json(_object(tool, "arguments")))
        return f'{begin} "[" {_joined(one, several, quoted(", "))} "]"'
    call = _each(tools, lambda tool: f"{quoted(tool.name)} {arguments} {rules.json(arguments_schema(tool.parameters))}")
    return _joined(f"({begin} {call})", several)


def _deepseek_v3(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    mark = rules.mark

    def call(tool: Tool) -> str:
        head = (
            f"{quoted('function')} {mark(deepseek.NAME_END)} {quoted(f'{tool.name}{chr(10)}{deepseek.FENCE}{chr(10)}')}"
        )
        return f"{head} {rules.json(arguments_schema(tool.parameters))} {quoted(f'{chr(10)}```')}"

    one = f"({mark(deepseek.CALL)} {_each(tools, call)} {mark(deepseek.CALL_END)})"
    return f"{mark(deepseek.SECTION)} {_joined(one, several, 'NEWLINES')} {mark(deepseek.SECTION_END)}"


def _deepseek_v31(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    mark = rules.mark
    call = _each(
        tools,
        lambda tool: f"{quoted(tool.name)} {mark(deepseek.NAME_END)} {rules.json(arguments_schema(tool.parameters))}",
    )
    one = f"({mark(deepseek.CALL)} {call} {mark(deepseek.CALL_END)})"
    return f"{mark(deepseek.SECTION)} {_joined(one, several)} {mark(deepseek.SECTION_END)}"


def _python(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    def value(tool: Tool, schema: Any) -> str:
        if isinstance(schema, Mapping) and schema.get("type") == "boolean":
            return '("True" | "False")'
        # Of JSON's escapes a grammar has those alone that Python reads as JSON does.
        return rules.json(_inner(tool, schema))

    def call(tool: Tool) -> str:
        required = tool.parameters.get("required")
        pieces = {key: f"{quoted(f'{key}=')} {value(tool, schema)}" for key, schema in _properties(tool).items()}
        must = [pieces.pop(key) for key in list(pieces) if isinstance(required, list) and key in required]
        return f"{quoted(f'{tool.name}(')} {_listed(must, list(pieces.values()))} {quoted(')')}"

    return f'"[" {_joined(_each(tools, call), several, quoted(", "))} "]"'


def _listed(must: Sequence[str], may: Sequence[str]) -> str:
    """All of the first and some of the others, with commas between."""
    if must:
        return " ".join([' ", " '.join(must), *(f'(", " {one})?' for one in may)])
    # Whichever of them is the first has no comma before it.
    begun = [_listed([one], may[place + 1 :]) for place, one in enumerate(may)]
    return f"({' | '.join(begun)})?" if begun else ""


def _python_marked(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    return f"{rules.mark(pythonic.BEGIN)} {_python(rules, tools, several)} {rules.mark(pythonic.END)}"


def _harmony(rules: Rules, tools: Sequence[Tool], several: bool) -> str:
    """One call: the model ends behind it."""
    mark = rules.mark

    def call(tool: Tool) -> str:
        to = quoted(f"commentary to={harmony.FUNCTIONS}{tool.name} ")
        arguments = rules.json(arguments_schema(tool.parameters))
        return f"{to} {mark(harmony.CONSTRAIN)} {quoted('json')} {mark(harmony.MESSAGE)} {arguments}"

    return f"{mark(harmony.CHANNEL)} {_each(tools, call)}"


_Form = Callable[[Rules, Sequence[Tool], bool], str]
_FORMS: Final[Mapping[str, _Form]] = {
    "hermes": _hermes,
    "qwen3_coder": _coder,
    "glm45": _glm,
    "llama3_json": _llama,
    "pythonic": _python,
    "llama4_pythonic": _python_marked,
    "mistral": _mistral,
    "deepseek_v3": _deepseek_v3,
    "deepseek_v31": _deepseek_v31,
    "openai": _harmony,
}
_NAMES_IN_JSON: Final = frozenset({"hermes", "llama3_json"})
_NAMED_ARGUMENTS: Final = frozenset({"qwen3_coder", "glm45", "pythonic", "llama4_pythonic"})
