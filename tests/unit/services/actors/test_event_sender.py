"""What a part tells arrives in its order, whatever time each delivery takes."""

import asyncio
from collections.abc import Sequence

import pytest

from streamrl.errors import DataError
from streamrl.services.actors.event_sender import Event, EventSender


class Deliveries:
    """Takes deliveries, and lets each come back when the test says so."""

    def __init__(self) -> None:
        self.begun: list[list[int]] = []
        self._ends: asyncio.Queue[BaseException | None] = asyncio.Queue()

    async def deliver(self, events: Sequence[Event]) -> None:
        self.begun.append([facts["step"] for _, facts in events])
        if (error := await self._ends.get()) is not None:
            raise error

    def end(self, error: BaseException | None = None) -> None:
        self._ends.put_nowait(error)


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_is_told_while_a_delivery_is_under_way_leaves_after_it_and_together() -> None:
    async def scenario() -> None:
        deliveries = Deliveries()
        event_sender = EventSender(deliveries.deliver)
        for step in (1, 2, 3):
            event_sender.send("step", {"step": step})
            await settle()
        assert deliveries.begun == [[1]]
        deliveries.end()
        await settle()
        assert deliveries.begun == [[1], [2, 3]]
        told = asyncio.create_task(event_sender.flush())
        await settle()
        assert not told.done()
        deliveries.end()
        await told
        event_sender.send("step", {"step": 4})
        deliveries.end()
        await event_sender.flush()
        assert deliveries.begun == [[1], [2, 3], [4]]

    asyncio.run(scenario())


def test_a_delivery_that_failed_is_raised_to_whoever_waits_and_nothing_leaves_after_it() -> None:
    async def scenario() -> None:
        deliveries = Deliveries()
        event_sender = EventSender(deliveries.deliver)
        event_sender.send("step", {"step": 1})
        deliveries.end(DataError("metrics.jsonl:3 is no metrics line"))
        await settle()
        event_sender.send("step", {"step": 2})
        for _ in range(2):
            with pytest.raises(DataError, match="no metrics line"):
                await event_sender.flush()
        assert deliveries.begun == [[1]]

    asyncio.run(scenario())


def test_who_waits_hears_only_after_what_was_told_as_a_delivery_came_back() -> None:
    async def scenario() -> None:
        arrived: list[int] = []

        async def deliver(events: Sequence[Event]) -> None:
            if arrived:
                await settle()
            arrived.extend(facts["step"] for _, facts in events)
            if arrived == [1]:
                # Runs when this delivery is over, and before anyone who waits for it.
                asyncio.get_running_loop().call_soon(event_sender.send, "step", {"step": 2})

        event_sender = EventSender(deliver)
        event_sender.send("step", {"step": 1})
        await event_sender.flush()
        assert arrived == [1, 2]

    asyncio.run(scenario())


def test_waiting_with_nothing_told_comes_back() -> None:
    async def scenario() -> None:
        await EventSender(Deliveries().deliver).flush()

    asyncio.run(scenario())
