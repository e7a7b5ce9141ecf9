"""From a Python function to the JSON schema of a tool, in OpenAI's form.

A parameter's type is its annotation; the description is the docstring, whose lines `name: text` under `Args:` describe
parameters, as transformers' `get_json_schema` reads it (Google's form).
"""

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from streamrl.errors import ConfigError

_TYPES: Final[Mapping[object, str]] = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
_ARGUMENT: Final = re.compile(r"^\s+(\w+)(?:\s*\([^)]*\))?:\s*(.+)$")


def tool_schemas(tools: object) -> list[dict[str, Any]]:
    """The schemas of an environment's `tools`, of nothing none. Raises ConfigError as `tool_schema` does, and for what
    is no list, two tools of one name, and a schema that is not JSON."""
    if tools is None:
        return []
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise ConfigError(f"tools is a {type(tools).__name__}, not a list of functions or JSON schemas")
    schemas = [tool_schema(tool) for tool in tools]
    names = [schema["function"]["name"] for schema in schemas]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"two tools have the name {twice[0]!r}; a model could not tell them apart")
    try:
        msgspec.json.encode(schemas)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the schemas of the tools are not JSON: {error}") from error
    return schemas


def tool_schema(tool: Callable[..., Any] | Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a tool, or the given one.

    Raises ConfigError for what is neither a function with named parameters nor a schema with a name.

    Example:
        >>> def add(a: int, b: int = 0) -> int:
        ...     "Adds two numbers."
        ...     return a + b
        >>> tool_schema(add)["function"]["parameters"]["required"]
        ['a']
    """
    if isinstance(tool, Mapping):
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            form = '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
            raise ConfigError(f"a tool's schema has no function.name: {dict(tool)!r:.200}; its form is {form}")
        parameters = function.get("parameters")
        if not isinstance(parameters, Mapping | None):
            what = f"a {type(parameters).__name__}, not a JSON schema"
            raise ConfigError(f"tool {function['name']!r}: its parameters are {what}")
        return {"type": "function", **tool}
    if not callable(tool) or not getattr(tool, "__name__", ""):
        raise ConfigError(f"a tool is a function or a JSON schema, not {type(tool).__name__}")
    return {"type": "function", "function": _function(tool)}


def _function(tool: Callable[..., Any]) -> dict[str, Any]:
    text, described = _described(inspect.getdoc(tool) or "")
    hints = get_type_hints(tool)
    properties, required = dict[str, Any](), list[str]()
    for parameter in inspect.signature(tool).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"tool {tool.__name__!r}: parameter {parameter} has no name that a model could give")
        properties[parameter.name] = _schema_of(hints.get(parameter.name, str))
        if parameter.name in described:
            properties[parameter.name]["description"] = described[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": tool.__name__, "description": text, "parameters": parameters}


def _schema_of(annotation: Any) -> dict[str, Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        kinds = [one for one in arguments if one is not type(None)]
        return _schema_of(kinds[0]) if len(kinds) == 1 else {"anyOf": [_schema_of(one) for one in kinds]}
    if origin is Literal:
        return {"type": _TYPES.get(type(arguments[0]), "string"), "enum": list(arguments)}
    if annotation in (list, tuple) or origin in (list, tuple):
        return {"type": "array", "items": _schema_of(arguments[0]) if arguments else {}}
    return {"type": _TYPES.get(origin or annotation, "string")}


def _described(doc: str) -> tuple[str, dict[str, str]]:
    """The text before the sections of a docstring, and what it says of each argument."""
    head, _, rest = doc.partition("\nArgs:")
    found = (_ARGUMENT.match(line) for line in rest.split("\n\n")[0].splitlines())
    return re.split(r"\n(?:Returns|Raises):", head)[0].strip(), {one[1]: one[2].strip() for one in found if one}
