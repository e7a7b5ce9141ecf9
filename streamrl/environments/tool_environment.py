"""The environment `tools`: the row's prompt, and functions that the model may call until it answers without a call.

It gives no reward of its own: `[reward]` scores the last message.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from streamrl.environments.base import Done, Message
from streamrl.environments.schemas import tool_schemas
from streamrl.rewards.base import writable

MOST_CHARACTERS = 10_000
"""Of what a tool answers; the rest is cut, and the model is told so."""


class ToolEnvironment:
    """See the module. tools: functions, sync or async, whose parameters have names; what one raises is its answer.
    system: the system message of rows that have none.

    Example:
        >>> import asyncio
        >>> def double(number: int) -> int:
        ...     return 2 * number
        >>> call = {"id": "1", "type": "function", "function": {"name": "double", "arguments": {"number": 21}}}
        >>> asyncio.run(ToolEnvironment([double]).step({"role": "assistant", "content": "", "tool_calls": [call]}))
        [{'role': 'tool', 'tool_call_id': '1', 'name': 'double', 'content': '42'}]
    """

    def __init__(self, tools: Sequence[Callable[..., Any]] = (), system: str = "") -> None:
        self.tools = tool_schemas(tools)
        self._functions = {tool.__name__: tool for tool in tools}
        self._system = system

    def reset(self, row: dict[str, Any]) -> list[Message]:
        """The row's messages where it has some, else its text as a user's."""
        given = row.get("messages", row.get("prompt", ""))
        messages: list[Message] = list(given) if isinstance(given, list) else [{"role": "user", "content": given}]
        if not self._system or (messages and messages[0].get("role") == "system"):
            return messages
        return [{"role": "system", "content": self._system}, *messages]

    async def step(self, message: Message) -> list[Message] | Done:
        """The answers of the tools that were called, or the end."""
        calls = message.get("tool_calls") or []
        if not calls:
            return Done()
        answers = await asyncio.gather(*(self._answer(call["function"]) for call in calls))
        return [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": answer}
            for call, answer in zip(calls, answers, strict=True)
        ]

    async def _answer(self, function: dict[str, Any]) -> str:
        name = function["name"]
        tool = self._functions.get(name)
        if tool is None:
            return f"Error: there is no tool {name!r}; there are {', '.join(self._functions) or 'none'}"
        try:
            text = await _called(tool, function["arguments"])
        except Exception as error:  # noqa: BLE001 - a tool may raise anything, and the model is told
            text = writable(f"Error: {type(error).__name__}: {error}")
        if len(text) > MOST_CHARACTERS:
            return f"{text[:MOST_CHARACTERS]}... ({len(text)} characters, cut)"
        return text


async def _called(tool: Callable[..., Any], arguments: dict[str, Any]) -> str:
    if inspect.iscoroutinefunction(tool):
        value = await tool(**arguments)
    else:
        value = await asyncio.to_thread(_plainly, tool, arguments)
        if inspect.isawaitable(value):  # of a decorated coroutine, or an object whose call is one
            value = await value
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return writable(value) if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


def _plainly(tool: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """In a thread, whose result cannot be a StopIteration."""
    try:
        return tool(**arguments)
    except StopIteration as error:
        raise RuntimeError("StopIteration") from error
