"""Tells of prompts that are started no more, once each, as the queue quarantines them."""

import asyncio
from collections.abc import Callable
from typing import Any

from ray.actor import ActorHandle

from streamrl.services.actors.deaths import DIED


async def report_quarantined(queue: ActorHandle, opened: asyncio.Event, tell: Callable[[str], None]) -> None:
    """Consumes what the queue quarantines; waits for the queue to open, then for the next prompt; ends when the queue
    is closed. opened: whether the queue may be asked."""
    await opened.wait()
    known = 0
    try:
        while told := await queue.quarantined.remote(known):
            for one in told:
                tell(sentence(one))
            known += len(told)
    except DIED:
        # Of the queue's death the others tell, who need it more.
        await asyncio.Event().wait()


def sentence(one: dict[str, Any]) -> str:
    """What a person should know of a prompt, as `streamrl.services.queue.actor` tells of it."""
    groups = "group" if one["failures"] == 1 else "groups"
    return (
        f"prompt {one['prompt_id']} (item {one['item']}) is quarantined and will not be started again: "
        f"{one['failures']} {groups} of it failed, the last for: {one['reason']}"
    )
