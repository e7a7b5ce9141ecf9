"""Values and keys as TOML text: what `dump` writes and what messages quote."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_QUOTED_LENGTH = 80  # of a value in a message: enough to recognise it, short enough for one line


def dotted(path: Iterable[str]) -> str:
    """A key path as TOML writes it: `a.b`, parts that need it in quotes."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else toml_string(part) for part in path)


def toml_string(text: str) -> str:
    """A TOML basic string. JSON's escapes are TOML's, but for DEL, which TOML forbids in the raw."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: object) -> str:
    """A value as TOML: strings, booleans, numbers, dates, lists and inline tables."""
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{dotted([key])} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return repr(value) if isinstance(value, int | float) else str(value)


def quoted(value: object) -> str:
    """`toml_value` cut to a length that fits a message."""
    text = toml_value(value)
    return text if len(text) <= _QUOTED_LENGTH else text[: _QUOTED_LENGTH - 3] + "..."
