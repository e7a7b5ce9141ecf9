"""Calls as Python's: `[f(a=1), g(b="x")]`, as Llama 3.2, Llama 4 and ToolACE write them. Pure.

A list of calls is read at the beginning of a message and behind `<|python_start|>`; values are literals. Nothing is
evaluated.
"""

import ast
import math
import warnings
from typing import Any, Final

import msgspec
import regex

from streamrl.conversations.formats.brackets import Brackets
from streamrl.conversations.formats.step import Found, Step, text_before, unread

BEGIN: Final = "<|python_start|>"
END: Final = "<|python_end|>"
_LIST: Final = r"(?P<list>\[)\s*+[^\W\d][\w.]*+\s*+\("
_MARKED: Final = regex.compile(r"<\|python_start\|>\s*+" + _LIST)
_FIRST: Final = regex.compile(r"\s*+(?:<\|python_start\|>\s*+)?" + _LIST)
_WORDS: Final = {"true": True, "false": False, "null": None}
"""JSON's words, which models write among Python's."""


class Pythonic:
    """See the module."""

    def __init__(self) -> None:
        self._brackets: Brackets | None = None
        self._fresh = True
        """Nothing was read yet, so calls need no mark."""
        self._behind = False

    def step(self, held: str, finish_reason: str) -> Step | None:
        """As `CallForm.step`."""
        rest = held.lstrip()
        if self._behind and END.startswith(rest[: len(END)]):
            return Step(len(held) - len(rest) + len(END)) if len(rest) >= len(END) else None
        self._behind = False
        if not self._fresh and not held.startswith(BEGIN):
            return text_before(held, BEGIN)
        head = (_FIRST if self._fresh else _MARKED).match(held, partial=True)
        if head is None:
            self._fresh = False
            return unread(held, len(BEGIN)) if held.startswith(BEGIN) else text_before(held, BEGIN)
        return None if head.partial else self._list(held, head.start("list"))

    def _list(self, held: str, start: int) -> Step | None:
        self._brackets = self._brackets or Brackets(start, quotes="\"'")
        end = self._brackets.end(held)
        if end < 0:
            return None
        self._brackets, self._fresh = None, False
        calls = _calls(held[start:end])
        self._behind = bool(calls)
        return Step(end, calls=calls) if calls else unread(held, end)


def _calls(text: str) -> tuple[Found, ...]:
    """None at all where one of them cannot be read."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
            tree = ast.parse(text, mode="eval").body
        calls = tuple(_called(one) for one in (tree.elts if isinstance(tree, ast.List) else ()))
        msgspec.json.encode([one.arguments for one in calls])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return calls


def _called(node: ast.expr) -> Found:
    """Raises ValueError for what is no call by names alone."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute) or node.args:
        raise ValueError(f"{ast.dump(node)} is no call by names")
    arguments = dict[str, Any]()
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("a call with `**` has no names")
        arguments[keyword.arg] = _value(keyword.value)
    return Found(ast.unparse(node.func), arguments)


def _value(node: ast.expr) -> Any:
    """Of a literal that JSON can write. Raises ValueError."""
    match node:
        case ast.Constant(value=str() | int() | None):
            return node.value
        case ast.Constant(value=float() as number) if math.isfinite(number):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return -_value(node.operand)
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(one) for one in elements]
        case ast.Dict(keys=keys, values=values):
            return {_key(key): _value(one) for key, one in zip(keys, values, strict=True)}
    raise ValueError(f"{type(node).__name__} is no value of JSON")


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("a key of JSON is a text")
    return node.value
