"""Every wait has an owner and a deadline: this is how an owner waits."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from streamrl.errors import DeadlineError

T = TypeVar("T")


async def within(seconds: float, awaitable: Awaitable[T], *, who: str, what: str) -> T:
    """Await something for `seconds` at most.

    Raises DeadlineError that names who waited, for what, and how long; the awaited thing is cancelled.
    """
    try:
        return await asyncio.wait_for(awaitable, seconds)
    except TimeoutError as error:
        if isinstance(error, DeadlineError):
            raise
        raise DeadlineError(f"{who}: {what} took longer than {seconds:g} s") from error
