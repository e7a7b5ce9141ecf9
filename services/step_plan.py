"""What every learner rank must know of one step: which rows are its own, and the sums over the whole batch.

Rank 0 makes the plan from the lease and hands it to the others as msgpack: ids, offsets and numbers, never tokens.
Denominators are of the whole batch, so a result does not depend on how rows are split. Pure: no I/O, no Ray.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from buffers.records import Lease
from streamrl.algorithms.advantages import advantage_of
from streamrl.config import Config
from streamrl.learner.balance import split_rows
from streamrl.types import FrameRef, LongArray


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One step. Array columns are little-endian bytes over the rows of the lease, in its order.

    step: the step whose weights the learner holds; -1 ends the loop of the other ranks, -2 only commits a checkpoint,
    -3 ends the run as if all steps were made.
    share: the share of each row. total_tokens, total_rows: what is trained of the whole batch (rows without a score are
    not).
    """

    step: int
    frames: list[FrameRef] = []
    frame_index: bytes = b""
    row: bytes = b""
    group: bytes = b""
    sample_index: bytes = b""
    rewards: bytes = b""
    valid: bytes = b""
    advantages: bytes = b""
    share: bytes = b""
    total_tokens: int = 0
    total_rows: int = 0


STOP = StepPlan(step=-1)
SAVE = StepPlan(step=-2)
FINISH = StepPlan(step=-3)


@dataclass(frozen=True, slots=True)
class Share:
    """Rows that are trained on together, on one rank, as columns over them."""

    frame_index: LongArray
    row: LongArray
    group: LongArray
    sample_index: LongArray
    rewards: npt.NDArray[np.float64]
    valid: npt.NDArray[np.bool_]
    advantages: npt.NDArray[np.float64]


def make_plan(lease: Lease, config: Config, hidden_size: int) -> StepPlan:
    """Advantages over the whole batch, and shares of about the same work."""
    named = config.learner.algorithm.advantage
    advantages = advantage_of(named, lease.rewards, lease.valid, lease.group, lease.sampled_tokens)
    trained = lease.valid & (lease.sampled_tokens > 0)
    return StepPlan(
        step=lease.step,
        frames=list(lease.frames),
        frame_index=_pack(lease.frame_index, np.int64),
        row=_pack(lease.row, np.int64),
        group=_pack(lease.group, np.int64),
        sample_index=_pack(lease.sample_index, np.int64),
        rewards=_pack(lease.rewards, np.float64),
        valid=_pack(lease.valid, np.uint8),
        advantages=_pack(advantages, np.float64),
        share=_pack(_shares(lease, num_shares(config), hidden_size), np.int64),
        total_tokens=int(lease.sampled_tokens[trained].sum()),
        total_rows=int(trained.sum()),
    )


def num_shares(config: Config) -> int:
    """Parts that a batch is cut into, over all ranks."""
    return config.learner.shares or config.learner.data_ranks


def shares_of(plan: StepPlan, rank: int, config: Config) -> list[Share]:
    """The shares of `rank`, of `learner.data_ranks`, in their order."""
    each = num_shares(config) // config.learner.data_ranks
    return [share_of(plan, number) for number in range(rank * each, (rank + 1) * each)]


def share_of(plan: StepPlan, number: int) -> Share:
    """The rows of one share, still in the order of the lease."""
    mine = np.frombuffer(plan.share, np.int64) == number
    return Share(
        frame_index=np.frombuffer(plan.frame_index, np.int64)[mine],
        row=np.frombuffer(plan.row, np.int64)[mine],
        group=np.frombuffer(plan.group, np.int64)[mine],
        sample_index=np.frombuffer(plan.sample_index, np.int64)[mine],
        rewards=np.frombuffer(plan.rewards, np.float64)[mine],
        valid=np.frombuffer(plan.valid, np.uint8)[mine].astype(bool),
        advantages=np.frombuffer(plan.advantages, np.float64)[mine],
    )


def encode(plan: StepPlan) -> bytes:
    return msgspec.msgpack.encode(plan)


def decode(data: bytes) -> StepPlan:
    return msgspec.msgpack.decode(data, type=StepPlan)


def _shares(lease: Lease, number: int, hidden_size: int) -> LongArray:
    share = np.zeros(lease.num_rows, np.int64)
    for index, rows in enumerate(split_rows(lease.num_tokens, lease.group, number, hidden_size)):
        share[rows] = index
    return share


def _pack(column: npt.NDArray[np.generic], dtype: type) -> bytes:
    return np.ascontiguousarray(column, dtype=dtype).tobytes()
