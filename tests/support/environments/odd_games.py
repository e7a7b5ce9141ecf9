"""Environments with the mistakes that people make; played in child processes of the tests."""

import asyncio
import functools
import os
import time
from collections.abc import Callable
from typing import Any

from streamrl.environments import Done, ToAgent


class _Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class _OfItsOwn(BaseException):
    pass


def _finds_nothing() -> Any:
    return next(iter(()))


def _raises(error: BaseException) -> Any:
    raise error


STEPS: dict[str, Callable[[], Any]] = {
    "next": _finds_nothing,
    "unreadable": lambda: _raises(_Unreadable()),
    "base": lambda: _raises(_OfItsOwn("far out")),
    "cancelled": lambda: _raises(asyncio.CancelledError()),
    "component that is no text": lambda: Done(1.0, {"\ud800": 1.0}),
    "agent that is no text": lambda: ToAgent("\ud800", "hi"),
}
"""By name, what the first step does."""


class Odd:
    """Does `how` at its first step, in a thread."""

    def __init__(self, how: str) -> None:
        self.how = how

    def reset(self, row: dict[str, Any]) -> str:
        return "hi"

    def step(self, message: dict[str, Any]) -> Any:
        return STEPS[self.how]()


class AsyncOdd(Odd):
    """The same in a coroutine."""

    async def step(self, message: dict[str, Any]) -> Any:
        return STEPS[self.how]()


class Blocking:
    """A coroutine that works without a pause."""

    async def reset(self, row: dict[str, Any]) -> str:
        return "hi"

    async def step(self, message: dict[str, Any]) -> Any:
        time.sleep(10**6)  # noqa: ASYNC251 - what is tested


class Leaving:
    """Ends its process, as the process itself does over a call that hangs."""

    def reset(self, row: dict[str, Any]) -> str:
        return "hi"

    def step(self, message: dict[str, Any]) -> Any:
        os._exit(72)


class Flags:
    """Has `truncated` and `close` as gymnasium's wrappers have them: values, no methods."""

    def __init__(self) -> None:
        self.truncated = False
        self.close = True

    def reset(self, row: dict[str, Any]) -> str:
        return "hi"

    def step(self, message: dict[str, Any]) -> str:
        return "hi"


_board = Flags()


def one_board() -> Flags:
    """The same for all episodes."""
    return _board


class OfGymnasium:
    """Its `reset` takes no row."""

    def reset(self, *, seed: int | None = None) -> str:
        return "hi"

    def step(self, message: dict[str, Any]) -> str:
        return "hi"


class LateTools(Flags):
    """Has tools that are no list of them, once it is reset."""

    def reset(self, row: dict[str, Any]) -> str:
        self.tools = {"add": abs}
        return "hi"


class TwoTools(Flags):
    """Has two tools of one name."""

    tools = ({"function": {"name": "add"}}, {"function": {"name": "add"}})


def in_bytes() -> bytes:
    """A tool that gives what a file holds."""
    return b"caf\xc3\xa9 \xff"


def decorated(tool: Any) -> Any:
    """As decorators of other packages do, it hides that a coroutine is one."""

    @functools.wraps(tool)
    def called() -> Any:
        return tool()

    return called


@decorated
async def later() -> str:
    """A tool that is a coroutine."""
    return "now"


def runs_out() -> str:
    """A tool that raises StopIteration."""
    return next(iter(()))


def half() -> str:
    """A tool that gives half of a pair."""
    return "\ud800"
