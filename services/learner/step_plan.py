"""What every learner rank must know of one step: which rows are its own, and the sums over the whole batch.

Rank 0 makes the plan from the lease and hands it to the others as msgpack: ids, offsets and numbers, never tokens.
Denominators are of a whole mini-batch, so a result does not depend on how its rows are split. Pure: no I/O, no Ray.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from streamrl.algorithms.advantages.estimate import (
    RewardedRows,
    advantages_of,
    counted_rows,
    length_penalties,
    shaped_rewards,
)
from streamrl.algorithms.advantages.outcome import advantage_of
from streamrl.buffers.rows.records import Lease
from streamrl.config import Config
from streamrl.learner.batch.balance import split_rows
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.parallel.rank_mesh import own_parts
from streamrl.types import FrameRef, LongArray


class StepPlan(msgspec.Struct, frozen=True, array_like=True):
    """One step. Array columns are little-endian bytes over the rows of the lease, in its order.

    step: the step whose weights the learner holds; -1 ends the loop of the other ranks, -2 only commits a checkpoint,
    -3 ends the run as if all steps were made.
    mini_batch, share: of each row. rewards: as shaped, what advantages are made of. scored: whether there is a score.
    valid: whether it is trained, by `counted_rows`. tokens: that were sampled. total_tokens, total_rows: what is
    trained of each mini-batch.
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
    mini_batch: bytes = b""
    share: bytes = b""
    total_tokens: list[int] = []
    total_rows: list[int] = []
    scored: bytes = b""
    tokens: bytes = b""


STOP = StepPlan(step=-1)
SAVE = StepPlan(step=-2)
FINISH = StepPlan(step=-3)


@dataclass(frozen=True, slots=True)
class Share:
    """Rows that are trained on together, on one rank, as columns over them. place: of each in the lease."""

    place: LongArray
    frame_index: LongArray
    row: LongArray
    group: LongArray
    sample_index: LongArray
    rewards: npt.NDArray[np.float64]
    valid: npt.NDArray[np.bool_]
    scored: npt.NDArray[np.bool_]
    advantages: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TrainedBatch:
    """What the rows of a whole batch are trained with. rewards_N: float64 [N], as shaped. advantages_N: float64 [N].
    counted_N: bool [N], by `counted_rows`. mini_batch_N: int64 [N]. total_tokens, total_rows: what is trained of each
    mini-batch."""

    rewards_N: npt.NDArray[np.float64]
    advantages_N: npt.NDArray[np.float64]
    counted_N: npt.NDArray[np.bool_]
    mini_batch_N: LongArray
    total_tokens: list[int]
    total_rows: list[int]


def trained_batch(rows: RewardedRows, config: Config) -> TrainedBatch:
    """One place for the plan and for `streamrl sql`, so that they cannot differ."""
    counted_N = counted_rows(rows, config)
    trained_N = counted_N & (rows.tokens_N > 0)
    mini_batch_N = mini_batch_of(rows.group_N, config.learner.mini_batches)
    return TrainedBatch(
        rewards_N=shaped_rewards(rows, config),
        advantages_N=advantages_of(rows, config),
        counted_N=counted_N,
        mini_batch_N=mini_batch_N,
        total_tokens=np.bincount(mini_batch_N, rows.tokens_N * trained_N).astype(np.int64).tolist(),
        total_rows=np.bincount(mini_batch_N, trained_N).astype(np.int64).tolist(),
    )


def make_plan(lease: Lease, config: Config, hidden_size: int) -> StepPlan:
    """Advantages over the whole batch, and of each mini-batch shares of about the same work."""
    counts = lease.group, lease.sample_index, lease.sampled_tokens
    rows = RewardedRows(lease.rewards, lease.valid, *counts, lease.components, lease.truncated)
    batch = trained_batch(rows, config)
    share = _shares(lease, batch.mini_batch_N, num_shares(config), hidden_size)
    return StepPlan(
        step=lease.step,
        frames=list(lease.frames),
        frame_index=_pack(lease.frame_index, np.int64),
        row=_pack(lease.row, np.int64),
        group=_pack(lease.group, np.int64),
        sample_index=_pack(lease.sample_index, np.int64),
        rewards=_pack(batch.rewards_N, np.float64),
        valid=_pack(batch.counted_N, np.uint8),
        advantages=_pack(batch.advantages_N, np.float64),
        mini_batch=_pack(batch.mini_batch_N, np.int64),
        share=_pack(share, np.int64),
        total_tokens=batch.total_tokens,
        total_rows=batch.total_rows,
        scored=_pack(lease.valid, np.uint8),
        tokens=_pack(lease.sampled_tokens, np.int64),
    )


def penalised(plan: StepPlan, penalty_N: npt.NDArray[np.float64], advantage: str) -> StepPlan:
    """The plan with the advantages of rewards that are lower by `penalty_N`, float64 [N].

    advantage: one that is made of rewards alone; `streamrl.config.rules.learner.components` refuses the others here.
    """
    advantages = advantage_of(
        advantage,
        np.frombuffer(plan.rewards, np.float64) - penalty_N,
        np.frombuffer(plan.scored, np.uint8).astype(bool),
        np.frombuffer(plan.group, np.int64),
        np.frombuffer(plan.tokens, np.int64),
        np.frombuffer(plan.valid, np.uint8).astype(bool),
    )
    return msgspec.structs.replace(plan, advantages=_pack(advantages, np.float64))


def overlong_penalties(lease: Lease, config: Config) -> npt.NDArray[np.float64]:
    """float64 [N], what `learner.overlong` adds to the rewards that advantages are made of."""
    return length_penalties(lease.sampled_tokens, config)


def num_shares(config: Config) -> int:
    """Parts that a mini-batch is cut into, over all ranks."""
    return config.learner.shares or config.learner.data_ranks


def shares_of(plan: StepPlan, rank: int, config: Config) -> list[list[Share]]:
    """Of each mini-batch the shares of data rank `rank`, of `learner.data_ranks`, in their order."""
    numbers = own_parts(num_shares(config), rank, config.learner.data_ranks)
    mini_batches = range(len(plan.total_rows))
    return [[share_of(plan, mini_batch, number) for number in numbers] for mini_batch in mini_batches]


def share_of(plan: StepPlan, mini_batch: int, number: int) -> Share:
    """The rows of one share of a mini-batch, still in the order of the lease."""
    mine = np.frombuffer(plan.share, np.int64) == number
    mine &= np.frombuffer(plan.mini_batch, np.int64) == mini_batch
    return Share(
        place=np.flatnonzero(mine),
        frame_index=np.frombuffer(plan.frame_index, np.int64)[mine],
        row=np.frombuffer(plan.row, np.int64)[mine],
        group=np.frombuffer(plan.group, np.int64)[mine],
        sample_index=np.frombuffer(plan.sample_index, np.int64)[mine],
        rewards=np.frombuffer(plan.rewards, np.float64)[mine],
        valid=np.frombuffer(plan.valid, np.uint8)[mine].astype(bool),
        scored=np.frombuffer(plan.scored, np.uint8)[mine].astype(bool),
        advantages=np.frombuffer(plan.advantages, np.float64)[mine],
    )


def encode(plan: StepPlan) -> bytes:
    return msgspec.msgpack.encode(plan)


def decode(data: bytes) -> StepPlan:
    return msgspec.msgpack.decode(data, type=StepPlan)


def _shares(lease: Lease, mini_batch: LongArray, number: int, hidden_size: int) -> LongArray:
    share = np.zeros(lease.num_rows, np.int64)
    for one in range(int(mini_batch.max(initial=-1)) + 1):
        rows = np.flatnonzero(mini_batch == one)
        for index, own in enumerate(split_rows(lease.num_tokens[rows], lease.group[rows], number, hidden_size)):
            share[rows[own]] = index
    return share


def _pack(column: npt.NDArray[np.generic], dtype: type) -> bytes:
    return np.ascontiguousarray(column, dtype=dtype).tobytes()
