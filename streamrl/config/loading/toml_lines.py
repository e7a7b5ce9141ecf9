"""TOML text to values, and to the line on which each key is set.

`tomllib` gives no positions, so the text is cut into statements: lines are collected until they parse by
themselves. It knows nothing of the schema.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from streamrl.config.toml_text import dotted

KeyPath = tuple[str, ...]
_POSITION = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)")


class SyntaxProblem(ValueError):
    """The text is not TOML. `line` counts from 1."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what, line)
        self.what = what
        self.line = line


def parse_toml(text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The values of `text` and, for every dotted key and table header, its first line.

    Raises SyntaxProblem.
    """
    text = text.replace("\r\n", "\n")
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_problem(str(error), text) from None
    except RecursionError:
        raise SyntaxProblem("nested too deeply", 0) from None
    return tree, _key_lines(text)


def _syntax_problem(message: str, text: str) -> SyntaxProblem:
    found = _POSITION.search(message)
    last = text.rstrip().count("\n") + 1
    line = int(found[1]) if found and found[1] else last
    what = _POSITION.sub("", message)
    return SyntaxProblem(f"not valid TOML: {what[:1].lower()}{what[1:]}", line)


def _key_lines(text: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    header: KeyPath = ()
    for first, statement in _statements(text):
        paths = list(key_paths(tomllib.loads(statement)))
        if statement.lstrip().startswith("["):
            header = paths[-1]
        else:
            paths = [header + path for path in paths]
        for path in paths:
            lines.setdefault(dotted(path), first)
        if paths[-1] == header:
            lines[dotted(header)] = first  # a header proper wins over an earlier `[header.child]`
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each statement of valid TOML with its first line; blank lines and comments are left out."""
    pending = ""
    first = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        first = first if pending else number
        pending = f"{pending}\n{line}" if pending else line
        if _is_complete(pending):
            yield first, pending
            pending = ""


def _is_complete(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def key_paths(tree: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Every path below `tree`, parents first."""
    for key, value in tree.items():
        path = (*prefix, key)
        yield path
        if isinstance(value, Mapping):
            yield from key_paths(value, path)
