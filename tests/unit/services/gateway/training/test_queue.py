"""Who waits for the ends of prompts: each is told of its own, whenever it asks, and one call waits at the queue."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.gateway.local_gateway import Direct, until
from support.queue.queue_parts import open_queue

from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.config.schema.streams import TASK, Share
from streamrl.gateway.refusal import Refusal
from streamrl.services.gateway.training.queue import CALLS_AT_ONCE, PromptEndings
from streamrl.tasks.base import SubmittedPrompt

PROMPTS = 3 * CALLS_AT_ONCE


@asynccontextmanager
async def desk_of(folder: Path) -> AsyncIterator[tuple[PromptEndings, ReplayQueue, Direct]]:
    """Of a queue that has prompts which nobody generates."""
    queue = open_queue(folder, streams={TASK: Share(0.0)})
    await queue.submitted.submit("agents", [SubmittedPrompt(str(n), "1+1=", "{}") for n in range(PROMPTS)])
    handle = Direct(queue.submitted)
    service = PromptEndings(handle)  # type: ignore[arg-type]
    yield service, queue, handle
    queue.close()
    await service.close()


async def test_each_is_told_of_its_own_and_one_call_waits(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as (service, queue, handle):
        waiting = [asyncio.ensure_future(service.ended([item])) for item in range(PROMPTS)]
        await until(lambda: handle.under_way["ends"] == 1 and not handle.under_way["ended"])
        for item in (5, 70):
            await queue.submitted.cancel([item])
            assert [one.item for one in await waiting[item]] == [item]
        await until(lambda: not handle.under_way["ended"])
        assert handle.under_way["ends"] == 1
        assert [place for place, one in enumerate(waiting) if one.done()] == [5, 70]
    assert [await one for place, one in enumerate(waiting) if place not in (5, 70)] == [[]] * (PROMPTS - 2)
    assert not service._news


async def test_no_more_calls_than_that_are_made_at_once(tmp_path: Path) -> None:
    most = 0

    class Counted(Direct):
        async def _called(self, name: str, args: tuple[object, ...]) -> object:
            nonlocal most
            most = max(most, self.under_way["ended"] + (name == "ended"))
            return await super()._called(name, args)

    async with desk_of(tmp_path) as (_, queue, _):
        service = PromptEndings(Counted(queue.submitted))  # type: ignore[arg-type]
        waiting = [asyncio.ensure_future(service.ended([item])) for item in range(PROMPTS)]
        await queue.submitted.cancel(list(range(PROMPTS)))
        await asyncio.gather(*waiting)
        await service.close()
    assert most == CALLS_AT_ONCE


async def test_what_ended_before_is_told(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as (service, queue, _):
        await queue.submitted.cancel([1])
        assert [one.item for one in await service.ended([0, 1])] == [1]
        assert [one.item for one in await service.ended([1])] == [1]


async def test_a_queue_that_dies_is_told_to_all_who_wait(tmp_path: Path) -> None:
    async with desk_of(tmp_path) as (service, _, handle):
        waiting = [asyncio.ensure_future(service.ended([item])) for item in range(3)]
        await until(lambda: handle.under_way["ends"] == 1 and not handle.under_way["ended"])
        handle.die()
        for one in waiting:
            with pytest.raises(Refusal) as refused:
                await one
            assert refused.value.code == "run_not_ready"
