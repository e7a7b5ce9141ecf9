"""The spelling of the command line: `@ b.toml --learner.optimizer.lr 1e-6 --rollout.deterministic=true`."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from streamrl.config.loading.layers import Layer, merge
from streamrl.config.loading.toml_lines import key_paths
from streamrl.config.problems import COMMAND_LINE, Problem
from streamrl.config.schema import fields
from streamrl.config.toml_text import dotted, quoted


class Arguments(Struct, frozen=True):
    """What followed the configuration's name. A key given twice keeps its last value."""

    overlays: tuple[str, ...]
    overrides: dict[str, str]
    problems: tuple[Problem, ...]


def parse_arguments(rest: Sequence[str]) -> Arguments:
    """Tell overlays from overrides. A value may begin with one hyphen (`-0.1`), not with two."""
    overlays: list[str] = []
    overrides: dict[str, str] = {}
    problems: list[Problem] = []
    words = list(reversed(rest))
    while words:
        word = words.pop()
        if word.startswith("--") and len(word) > 2:
            _take_override(word[2:], words, overrides, problems)
        elif word.startswith("@"):
            _take_overlay(word[1:], words, overlays, problems)
        else:
            what = "expected `@ overlay.toml` or `--key value`"
            problems.append(_problem("", what, given=quoted(word)))
    return Arguments(tuple(overlays), overrides, tuple(problems))


def override_layer(overrides: Mapping[str, str]) -> tuple[Layer, list[Problem]]:
    """The overrides as the last source of values, each text read by the type of its key."""
    types = {leaf.name: leaf.type for leaf in fields.leaves()}
    tree: dict[str, Any] = {}
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for spelled, text in overrides.items():
        key = spelled.replace("-", "_")
        parts = key.split(".")
        if not all(parts):
            problems.append(_problem(spelled, "not a key; write --table.key value", given=quoted(text)))
            continue
        if not text.isprintable() or not _is_utf8(text):
            problems.append(_problem(key, "not one line of UTF-8 text", given=ascii(text)))
            continue
        value: Any = _read(text, types.get(key))
        for part in reversed(parts):
            value = {part: value}
        tree = merge(tree, value)
        lines |= {dotted(path): 0 for path in key_paths(value)}
    return Layer(COMMAND_LINE, tree, lines), problems


def _take_override(word: str, words: list[str], overrides: dict[str, str], problems: list[Problem]) -> None:
    key, equals, value = word.partition("=")
    if not equals:
        if not words or words[-1].startswith(("--", "@")):
            problems.append(_problem(key, f"needs a value: --{key} VALUE"))
            return
        value = words.pop()
    overrides.pop(key, None)  # given again, it moves behind all others: later wins
    overrides[key] = value


def _take_overlay(name: str, words: list[str], overlays: list[str], problems: list[Problem]) -> None:
    if name or (words and not words[-1].startswith("--")):
        overlays.append(name or words.pop())
    else:
        problems.append(_problem("", "@ needs a file: @ overlay.toml"))


def _read(text: str, annotation: Any) -> Any:
    """`text` as a TOML value, or as it stands where it is none or where the key wants a word."""
    value = _toml(text)
    if annotation is not None and fields.takes_text(annotation):
        return value if isinstance(value, str) else text
    if annotation is not None and fields.takes_bool(annotation):
        return {"true": True, "false": False}.get(text.lower(), value)
    return value


def _toml(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _problem(key: str, what: str, given: str = "") -> Problem:
    return Problem(key=key, what=what, given=given, file=COMMAND_LINE)
