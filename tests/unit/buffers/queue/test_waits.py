"""Who waited in the queue, for how long, and who of them at the same time."""

import asyncio
from pathlib import Path

from support.queue.queue_parts import Order, Parts, both, queue_settings, turn

from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.clock import VirtualClock
from streamrl.scheduling.utilization import Waited
from streamrl.types import Version


async def test_a_learner_that_waits_alone_is_starved_and_one_beside_a_replica_that_waits_is_not(tmp_path: Path) -> None:
    clock = VirtualClock()
    queue = ReplayQueue.open(tmp_path, queue_settings(), Order(), clock)
    parts = Parts(queue, tmp_path)
    clock.advance(1.0)
    await queue.take("r", 0, Version(0, 0), 10)
    lease = asyncio.ensure_future(queue.lease(0))
    await turn()
    clock.advance(2.0)
    assert queue.waits.until_now() == Waited(learner_s=2.0, starved_s=2.0), "a wait that goes on counts"
    more = asyncio.ensure_future(queue.take("r", 0, Version(0, 0), 10))
    await turn()
    clock.advance(4.0)
    for number in (0, 1):
        await parts.accept(both(number))
    await parts.score_waiting()
    assert (await lease).waited_s == 6.0
    await turn()
    clock.advance(8.0)
    assert queue.waits.until_now() == Waited(learner_s=6.0, starved_s=2.0, held_back_s=12.0)
    queue.close()
    assert await more == []
    clock.advance(16.0)
    assert queue.waits.until_now() == Waited(learner_s=6.0, starved_s=2.0, held_back_s=12.0)


async def test_what_the_learner_waits_once_all_of_a_batch_is_sampled_is_for_scores(tmp_path: Path) -> None:
    clock = VirtualClock()
    queue = ReplayQueue.open(tmp_path, queue_settings(), Order(), clock)
    parts = Parts(queue, tmp_path)
    await queue.take("r", 0, Version(0, 0), 4)
    lease = asyncio.ensure_future(queue.lease(0))
    await turn()
    clock.advance(1.0)
    await parts.accept(both(0))
    await turn()
    clock.advance(2.0)
    await parts.accept([(1, 0)])
    await turn()
    clock.advance(4.0)
    await parts.accept([(1, 1)])
    await turn()
    clock.advance(8.0)
    await parts.score_waiting()
    granted = await lease
    assert (granted.waited_s, granted.unscored_s) == (15.0, 8.0)
    await parts.accept(both(2))
    await queue.commit(0)
    later = asyncio.ensure_future(queue.lease(1))
    await turn()
    clock.advance(16.0)
    await parts.score_waiting()
    await parts.accept(both(3))
    await parts.score_waiting()
    assert ((await later).waited_s, (await later).unscored_s) == (16.0, 0.0), "a scored group is not all of a batch"
    queue.close()


async def test_who_gives_up_waiting_waits_no_more(tmp_path: Path) -> None:
    clock = VirtualClock()
    queue = ReplayQueue.open(tmp_path, queue_settings(), Order(), clock)
    lease = asyncio.ensure_future(queue.lease(0))
    await turn()
    clock.advance(3.0)
    lease.cancel()
    await asyncio.gather(lease, return_exceptions=True)
    clock.advance(5.0)
    assert queue.waits.until_now() == Waited(learner_s=3.0, starved_s=3.0)
    queue.close()
