"""The queue's index with a million rows: lease and commit of 64 groups, and memory for a row.

No frame is written: the rows are told of, as `accept` and `add_scores` tell the queue, and the ledger is kept in
memory level (no sync), so that what is timed is the index.
"""

import asyncio
import gc
import resource
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from report import Report

from queue_parts.consumer import GROUPS_PER_STEP, Order, accepted_rows
from queue_parts.wire import GROUP_SIZE
from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.rows.records import QueueSettings, ScoredRows, UnscoredFrame
from streamrl.buffers.segments.places import COMPLETIONS_DIR, SCORES_DIR
from streamrl.clock import SystemClock
from streamrl.types import FrameRef, Version

ROWS_PER_CALL = 4096
STEPS = 100


class Measured(NamedTuple):
    """Medians over the steps, and what the rows took."""

    lease_s: float
    commit_s: float
    row_bytes: float
    row_s: float


def measure(report: Report, rows: int) -> None:
    """At a tenth of the rows and at all of them: what a step costs must not grow with the index."""
    for number in (rows // 10, rows):
        # A process for each: memory that another one gave back would not be counted again.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            found = process.submit(_measured, number).result()
        what = f"index of {number:,} rows"
        bound = {"at_most": 2} if number == rows else {}
        step_ms = 1e3 * (found.lease_s + found.commit_s)
        report.add(f"{what}: lease and commit of {GROUPS_PER_STEP} groups", step_ms, "ms", **bound)
        report.add(f"{what}: lease alone", 1e3 * found.lease_s, "ms")
        report.add(f"{what}: memory for a row", found.row_bytes, "bytes")
        report.add(f"{what}: accept and score of a row", 1e6 * found.row_s, "microseconds")


def _measured(rows: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="bench-index-") as name:
        return asyncio.run(_measure(Path(name), rows))


async def _measure(folder: Path, rows: int) -> Measured:
    queue = ReplayQueue.open(folder, _settings(), Order(), SystemClock())
    before = _resident()
    started = time.monotonic()
    await _fill(queue, rows)
    filled_s = time.monotonic() - started
    gc.collect()
    held = _resident() - before
    times = []
    for step in range(min(STEPS, rows // GROUP_SIZE // GROUPS_PER_STEP)):
        started = time.monotonic()
        lease = await queue.lease(step)
        assert lease is not None
        leased = time.monotonic()
        await queue.commit(step)
        times.append((leased - started, time.monotonic() - leased))
    lease_s, commit_s = (statistics.median(part) for part in zip(*times, strict=True))
    queue.close()
    return Measured(lease_s, commit_s, held / rows, filled_s / rows)


def _settings() -> QueueSettings:
    return QueueSettings(
        group_size=GROUP_SIZE,
        groups_per_step=GROUPS_PER_STEP,
        max_staleness=10**6,
        byte_budget=2**50,
        rollout_bytes=2**14,
        durability="memory",
        commit_interval_s=0.0,
    )


async def _fill(queue: ReplayQueue, rows: int) -> None:
    """Issue, accept and score `rows` rows."""
    await queue.next_epoch("replica")
    await queue.next_epoch("scorer")
    for sequence in range(-(-rows // ROWS_PER_CALL)):
        numbers = []
        while len(numbers) < ROWS_PER_CALL // GROUP_SIZE:
            room = ROWS_PER_CALL // GROUP_SIZE - len(numbers)
            numbers += [ticket.number for ticket in await queue.take("replica", 0, Version(0, 0), room)]
        accepted = accepted_rows(numbers)
        frame = FrameRef(f"{COMPLETIONS_DIR}/replica-0-0.arrow", 8 * sequence, 2**20, ROWS_PER_CALL, 1, 1)
        await queue.accept("replica", 0, sequence, frame, accepted)
        scored = _scored(await queue.unscored("scorer", 0, ROWS_PER_CALL))
        frame = FrameRef(f"{SCORES_DIR}/scorer-0-0.arrow", 8 * sequence, 2**16, ROWS_PER_CALL, 1, 1)
        await queue.add_scores("scorer", 0, sequence, frame, scored)


def _scored(parts: list[UnscoredFrame]) -> ScoredRows:
    """A reward of 1 for each row that waits."""
    names = ("number", "sample_index", "branch", "attempt")
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in names]
    count = len(columns[0])
    return ScoredRows(*columns, valid=np.ones(count, np.bool_), reward=np.ones(count))


def _resident() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
