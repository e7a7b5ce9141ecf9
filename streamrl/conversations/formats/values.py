"""Names and arguments in what models write: JSON, and values without quotes. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streamrl.conversations.formats.step import Found


def json_of(text: str) -> Any:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def object_of(given: Any) -> dict[str, Any] | None:
    """An object, or the text of one: some models write JSON into JSON, as OpenAI's own messages have it."""
    given = json_of(given) if isinstance(given, str) else given
    return given if isinstance(given, dict) else None


def call_of(said: Any, keys: Sequence[str] = ("arguments",)) -> Found | None:
    """A call that is written as an object. keys: that its arguments may have; without any of them it has none."""
    if not isinstance(said, dict) or not isinstance(said.get("name"), str) or not said["name"]:
        return None
    arguments = object_of(next((said[key] for key in keys if key in said), {}))
    return None if arguments is None else Found(said["name"], arguments)


def typed(value: str, schema: object, key: str) -> Any:
    """A value that is written without quotes: what the schema of the arguments calls no text is JSON."""
    if _type_of(schema, key) in (None, "string"):
        return value
    found = json_of(value)
    return value if found is None and value != "null" else found


def _type_of(schema: object, key: str) -> object:
    """Schemas come from clients, and may be anything."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    one = properties.get(key) if isinstance(properties, Mapping) else None
    return one.get("type") if isinstance(one, Mapping) else None
