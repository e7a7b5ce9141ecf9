"""Runs the named loops of one actor: a finite one, and others that must outlive it.

The first error decides: it is raised, with the loop's name, and everything else is cancelled and awaited. A loop
that ends before its time is an error too, since whoever waits for it would wait for ever.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from streamrl.errors import ComponentError


async def run_until(clock: str, loops: dict[str, Coroutine[Any, Any, Any]]) -> Any:
    """Run all `loops` until the one named `clock` ends, and return what it returned.

    Raises the first error of any loop, or ComponentError when another loop ended by itself.
    """
    tasks = {asyncio.create_task(loop, name=name): name for name, loop in loops.items()}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        finished = {tasks[task]: task for task in done}
        if clock not in finished:
            raise ComponentError(f"{', '.join(sorted(finished))} ended before {clock}; it should run as long")
        return finished[clock].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_all(loops: dict[str, Coroutine[Any, Any, Any]]) -> None:
    """Run all `loops` to their ends; the first error cancels the rest and is raised."""
    tasks = [asyncio.create_task(loop, name=name) for name, loop in loops.items()]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
