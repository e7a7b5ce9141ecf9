"""Calls between `<tool_call>` and `</tool_call>`, of three kinds. Pure.

Hermes' and Qwen's JSON object with `name` and `arguments`; Qwen3-Coder's `<function=NAME>` with a `<parameter=NAME>`
for each argument; GLM's name with an `<arg_key>` and an `<arg_value>` for each.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from streamrl.conversations.formats.step import Found, Step, text_before, unread
from streamrl.conversations.formats.values import call_of, json_of, typed
from streamrl.types import FinishReason

BEGIN: Final = "<tool_call>"
END: Final = "</tool_call>"
CODER: Final = "<function="
KEY: Final = "<arg_key>"
KEY_END: Final = "</arg_key>"
VALUE: Final = "<arg_value>"
VALUE_END: Final = "</arg_value>"
_GLM_NAME: Final = re.compile(r"[^\s<>{}]+")


class Tagged:
    """The first two kinds: a model that was taught one of them is read where it writes the other."""

    def __init__(self, tools: Mapping[str, Any]) -> None:
        self._tools = tools

    def step(self, held: str, finish_reason: str) -> Step | None:
        """As `CallForm.step`."""
        if not held.startswith(BEGIN):
            return text_before(held, BEGIN)
        body, mark, _ = held[len(BEGIN) :].partition(END)
        if not mark and finish_reason != FinishReason.STOP:
            return None
        length = len(BEGIN) + len(body) + len(mark)
        found = self._called(body.strip())
        return unread(held, length) if found is None else Step(length, calls=(found,))

    def _called(self, body: str) -> Found | None:
        return _of_coder(body, self._tools) or call_of(json_of(body))


class Glm(Tagged):
    """The third."""

    def _called(self, body: str) -> Found | None:
        name, _, rest = body.partition(KEY)
        name, rest = name.strip(), body[body.index(KEY) :] if KEY in body else ""
        if not _GLM_NAME.fullmatch(name):
            return None
        arguments = dict[str, Any]()
        while rest:
            key, closed, after = rest.removeprefix(KEY).partition(KEY_END)
            value, ended, behind = after.lstrip().removeprefix(VALUE).partition(VALUE_END)
            if not (rest.startswith(KEY) and closed and after.lstrip().startswith(VALUE) and ended):
                return None
            arguments[key.strip()] = typed(value, self._tools.get(name), key.strip())
            rest = behind.lstrip()
        return Found(name, arguments)


def _of_coder(body: str, tools: Mapping[str, Any]) -> Found | None:
    name, closed, rest = body.removeprefix(CODER).partition(">")
    if not body.startswith(CODER) or not name or not closed or not rest.endswith("</function>"):
        return None
    rest = rest.removesuffix("</function>").strip()
    arguments = dict[str, Any]()
    while rest:
        key, _, value = rest.removeprefix("<parameter=").partition(">")
        value, closed, after = value.partition("</parameter>")
        if not rest.startswith("<parameter=") or not closed:
            return None
        arguments[key] = typed(value.removeprefix("\n").removesuffix("\n"), tools.get(name), key)
        rest = after.lstrip()
    return Found(name, arguments)
