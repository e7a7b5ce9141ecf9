"""Streams of prompts that clients keep full share a live run by their weights and priorities.

By the ledger, where the order of the records is the order of the decisions: the clock of nobody matters.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from support.runs.live_run import live_run

import streamrl
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Cancelled, Issued, Step, Submitted
from streamrl.client.client import Client

pytestmark = pytest.mark.ray

GROUPS, URGENT = 400, 40
HEAVY, LIGHT, FIRST = "heavy", "light", "first"
AHEAD = 128
"""More than run or wait for their step at once, or a stream would run dry: that is 3 steps of 16."""
TOLERANCE = 0.05
RUN = (
    *("--rollout.engine", "scripted", "--rollout.group_size", "2", "--learner.groups_per_step", "16"),
    *("--learner.max_staleness", "2", "--learner.steps", "100000", "--eval.every", "100000"),
    *("--checkpoint.every", "20", "--observe.trace", "false", "--gateway.enabled", "true"),
    *("--gateway.stream_weights", f"{{ train = 0.0, {HEAVY} = 3.0, {LIGHT} = 1.0, {FIRST} = 0.5 }}"),
    *("--gateway.stream_priorities", f"{{ {FIRST} = 1 }}"),
)


class Draw(NamedTuple):
    """A group that was issued for the first time. waiting: prompts of each stream, its own among them."""

    number: int
    stream: str
    waiting: dict[str, int]


class Clients:
    """Two streams that have prompts all the time, until GROUPS of them and then those that come first are trained."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._results = 0
        self._enough, self._ended = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as both:
            for stream in (HEAVY, LIGHT):
                both.create_task(self._keep_full(stream))
            await self._enough.wait()
            asks = [self._client.submit(f"{number}+9=", stream=FIRST) for number in range(URGENT)]
            await asyncio.gather(*asks)
            self._ended.set()

    async def _keep_full(self, stream: str) -> None:
        asks = ({"key": f"k{number}", "prompt": f"{number % 1000}+1="} for number in count())
        async with aclosing(self._client.stream(asks, stream=stream, ahead=AHEAD)) as results:
            async for _ in results:
                self._results += 1
                # Those that wait to be trained are on top: the window is counted in what is issued and trained.
                if self._results >= GROUPS + AHEAD:
                    self._enough.set()
                if self._ended.is_set():
                    break


async def submit(folder: Path) -> None:
    async with streamrl.connect(folder) as client:
        await Clients(client).run()


def draws(folder: Path) -> Iterator[Draw]:
    """In the order of the ledger."""
    streams: list[str] = []
    waiting: Counter[str] = Counter()
    for file in read_ledger(folder / "queue/ledger"):
        for record in file.records:
            match record:
                case Submitted(stream, asked):
                    streams += [stream] * len(asked)
                    waiting[stream] += len(asked)
                case Cancelled(items):
                    waiting.subtract(streams[item] for item in items)
                case Issued(_, tickets):
                    for ticket in tickets:
                        if ticket.attempt == 0:
                            assert ticket.submitted, "the run's own data has no weight"
                            stream = streams[ticket.data_index]
                            yield Draw(ticket.number, stream, dict(waiting))
                            waiting[stream] -= 1


def trained(folder: Path) -> set[int]:
    records = (record for file in read_ledger(folder / "queue/ledger") for record in file.records)
    return {number for record in records if isinstance(record, Step) for number in record.numbers}


def check_shares(groups: list[Draw], what: str) -> None:
    shares = Counter(draw.stream for draw in groups)
    ratio = shares[HEAVY] / shares[LIGHT]
    print(f"{what}: {dict(shares)}, {ratio:.3f} to 1")
    assert sum(shares.values()) >= GROUPS, f"both streams had prompts for {sum(shares.values())} groups alone"
    assert abs(ratio - 3) <= 3 * TOLERANCE, f"{what}: {ratio:.3f} to 1"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_streams_that_are_kept_full_share_a_live_run_by_weight_and_a_priority_goes_first(
    user_folder: Path, streamrl_path: Path
) -> None:
    with (
        ThreadPoolExecutor(1) as beside,
        live_run(user_folder, streamrl_path, "shares", *RUN) as run,
    ):
        assert run.read_until(lambda event: event["kind"] == "gateway"), run.end()
        submitting = beside.submit(lambda: asyncio.run(submit(run.folder)))
        assert run.read_until(lambda _: submitting.done()), run.end()
        submitting.result()
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
        assert code == 130, err
    made = list(draws(run.folder))
    both = [draw for draw in made if draw.waiting.get(HEAVY) and draw.waiting.get(LIGHT)]
    by_weight = [draw for draw in both if not draw.waiting.get(FIRST)]
    check_shares(by_weight, "issued")
    check_shares([draw for draw in by_weight if draw.number in trained(run.folder)], "trained")
    with_first = [draw.stream for draw in both if draw.waiting.get(FIRST)]
    assert Counter(with_first) == {FIRST: URGENT}
