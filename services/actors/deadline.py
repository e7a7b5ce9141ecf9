"""Every wait has an owner and a deadline: this is how an owner waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from streamrl.errors import DeadlineError

T = TypeVar("T")

PAUSE_ANSWER_S = 5.0
"""How long whoever is late has to say that it waits for the disk."""


async def within(seconds: float, awaitable: Awaitable[T], *, who: str, what: str) -> T:
    """Await something for `seconds` at most.

    Raises DeadlineError that names who waited, for what, and how long; the awaited thing is cancelled.
    """
    # Not `asyncio.wait_for`: before Python 3.12 it forgets a cancellation that comes as the awaited thing ends.
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError as error:
        if isinstance(error, DeadlineError):
            raise
        raise DeadlineError(f"{who}: {what} took longer than {seconds:g} s") from error


async def within_or_paused(
    seconds: float, awaitable: Awaitable[T], *, who: str, what: str, pause: Callable[[], Awaitable[str]]
) -> T:
    """The same, but when the time is over and `pause` names a full disk that it waits for, the time begins anew. A
    `pause` that does not answer is none.

    Raises DeadlineError when it is over and nothing is paused; the awaited thing is cancelled.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        while not (await asyncio.wait({task}, timeout=seconds))[0]:
            if not await _answered(pause(), min(seconds, PAUSE_ANSWER_S)):
                raise DeadlineError(f"{who}: {what} took longer than {seconds:g} s")
        return task.result()
    finally:
        task.cancel()


async def _answered(question: Awaitable[str], seconds: float) -> str:
    try:
        async with asyncio.timeout(seconds):
            return await question
    except TimeoutError:
        return ""
