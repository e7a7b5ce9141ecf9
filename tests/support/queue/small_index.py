"""A replay index of two rollouts a group, and what a test gives it."""

import numpy as np

from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.buffers.rows.records import ACCEPTED, SCORED, QueueSettings
from streamrl.clock import VirtualClock
from streamrl.types import FrameRef

STOP, LENGTH, ABORT, ERROR = range(4)
ROLLOUT_BYTES = 100


class Order:
    """Data in its own order, five items a pass."""

    def at(self, n: int, /) -> tuple[int, int]:
        return divmod(n, 5)


def queue_settings(
    *, group_size=2, groups_per_step=2, max_staleness=1, byte_budget=10**9, total=None, late="wait", journalled=False
):
    return QueueSettings(
        group_size=group_size,
        groups_per_step=groups_per_step,
        max_staleness=max_staleness,
        byte_budget=byte_budget,
        rollout_bytes=ROLLOUT_BYTES,
        total_groups=total,
        late=late,
        journalled=journalled,
    )


def make_index(*, clock=None, **options) -> ReplayIndex:
    return ReplayIndex(queue_settings(**options), Order(), clock or VirtualClock())


def frame(*, rows, offset=0, row_bytes=10) -> FrameRef:
    return FrameRef("queue/completions/r-0-0.arrow", offset, rows * row_bytes, rows, 0, 0)


def accepted(keys, *, finish=STOP, attempt=0, oldest=0, sampled=3):
    """Rows of type ACCEPTED; keys are (number, sample index) or (number, sample index, branch)."""
    rows = np.zeros(len(keys), ACCEPTED)
    for row, key in enumerate(keys):
        branch = key[2] if len(key) > 2 else 0
        rows[row] = (key[0], key[1], branch, attempt, row, 4, sampled, oldest, finish)
    return rows


def scored(keys, *, attempt=0):
    rows = np.zeros(len(keys), SCORED)
    for row, key in enumerate(keys):
        rows[row] = (key[0], key[1], key[2] if len(key) > 2 else 0, attempt, row)
    return rows


def both(number):
    return [(number, 0), (number, 1)]


def accept(index, keys, *, offset=0, row_bytes=10, **options):
    return index.accept(frame(rows=len(keys), offset=offset, row_bytes=row_bytes), accepted(keys, **options))


def score(index, keys, *, valid=None, reward=None, attempt=0):
    flags = np.ones(len(keys), np.bool_) if valid is None else np.array(valid)
    rewards = np.arange(len(keys), dtype=np.float64) if reward is None else np.array(reward, np.float64)
    return index.score(scored(keys, attempt=attempt), flags, rewards)


def finish(index, number, *, oldest=0, attempt=0):
    accept(index, both(number), offset=100 * number, oldest=oldest, attempt=attempt)
    score(index, both(number), attempt=attempt)


def assert_books_close(counts, *, group_size=2):
    dropped = sum(counts.groups_dropped.values())
    assert counts.groups_issued == (
        counts.groups_running + counts.groups_ready + counts.groups_leased + counts.groups_trained + dropped
    )
    assert counts.tokens_accepted == (
        counts.tokens_queued + counts.tokens_leased + counts.tokens_trained + counts.tokens_dropped
    )
    assert min(counts.rows_pending, counts.rows_complete, counts.bytes_reserved, counts.bytes_held) >= 0
    assert counts.bytes_used <= counts.byte_budget
