"""What the replay queue takes and gives: columns of rows, leases, counts, settings. Plain data, numpy inside.

All arrays of one record are [N], one entry a row. A row is named by (group number, sample index, branch).
"""

from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from streamrl.buffers.rows.arrow import CompletionRows
from streamrl.buffers.rows.schema import FINISH_REASONS
from streamrl.config.schema.data import CurriculumConfig
from streamrl.config.schema.learner import FilterConfig
from streamrl.config.schema.streams import Share
from streamrl.errors import DataError
from streamrl.types import FrameRef, IntArray, LongArray

FAILED_FINISHES: Final = frozenset({FINISH_REASONS.index("abort"), FINISH_REASONS.index("error")})
"""Finish codes of rollouts that nobody scores: their score is `failed` at once."""

TRUNCATED_FINISH: Final = FINISH_REASONS.index("length")
"""Finish code of rollouts that were cut off."""

ACCEPTED: Final = np.dtype(
    [
        ("number", "<i8"),
        ("sample_index", "<i4"),
        ("branch", "<i4"),
        ("attempt", "<i4"),
        ("row", "<i4"),
        ("prompt_tokens", "<i4"),
        ("sampled_tokens", "<i4"),
        ("oldest_step", "<i8"),
        ("finish", "u1"),
    ]
)
"""One accepted row, as the ledger keeps it. `row` is its place in the frame."""

SCORED: Final = np.dtype(
    [("number", "<i8"), ("sample_index", "<i4"), ("branch", "<i4"), ("attempt", "<i4"), ("row", "<i4")]
)
"""One scored row, as the ledger keeps it; status and reward are in the scores frame, at `row`."""

Records = npt.NDArray[np.void]
"""A structured array of one of the two types above."""


@dataclass(frozen=True, slots=True)
class AcceptedRows:
    """What the index must know of the rows of one completions frame, in the order of the frame.

    attempt: of the ticket. prompt_tokens: tokens that were not sampled. oldest_step: lowest step that sampled
    into the row, -1 for none. finish: place of the finish reason in `FINISH_REASONS`.
    """

    number: LongArray
    sample_index: IntArray
    branch: IntArray
    attempt: IntArray
    prompt_tokens: IntArray
    sampled_tokens: IntArray
    oldest_step: LongArray
    finish: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, rows: CompletionRows, number: LongArray) -> "AcceptedRows":
        """Derived from what was written. number: int64 [N], the group's number of each row."""
        sampled = rows.tokens.sampled_tokens()
        lengths = np.diff(rows.tokens.offsets)
        codes = [FINISH_REASONS.index(reason) for reason in rows.finish_reason]
        return cls(
            number=np.asarray(number, np.int64),
            sample_index=rows.sample_index,
            branch=rows.branch,
            attempt=rows.attempt,
            prompt_tokens=(lengths - sampled).astype(np.int32),
            sampled_tokens=sampled.astype(np.int32),
            oldest_step=rows.tokens.oldest_steps(),
            finish=np.array(codes, np.uint8),
        )

    def packed(self) -> Records:
        """The rows as a structured array of the type ACCEPTED, numbered by their place in the frame.

        Raises:
            DataError: the columns differ in length.
        """
        return pack(ACCEPTED, self, row=np.arange(len(self.number), dtype=np.int32))


@dataclass(frozen=True, slots=True)
class ScoredRows:
    """The verdicts of one scores frame, in the order of the frame. reward and components count only where valid.

    The first four columns are those of the `UnscoredFrame`s that were scored, one after the other. components: float64
    [N, C], a column for each name of `QueueSettings.components`; None where there are none. reason: of each that
    failed, "" of the others; None where nobody says.
    """

    number: LongArray
    sample_index: IntArray
    branch: IntArray
    attempt: IntArray
    valid: npt.NDArray[np.bool_]
    reward: npt.NDArray[np.float64]
    components: npt.NDArray[np.float64] | None = None
    reason: list[str] | None = None

    def packed(self) -> Records:
        """The names as a structured array of the type SCORED, numbered by their place in the frame.

        Raises:
            DataError: the columns differ in length.
        """
        columns = {"valid": self.valid, "reward": self.reward, "reason": self.reason}
        for name, values in columns.items():
            if values is not None and len(values) != len(self.number):
                raise DataError(f"column {name} has {len(values)} entries, column number has {len(self.number)}")
        return pack(SCORED, self, row=np.arange(len(self.number), dtype=np.int32))


@dataclass(frozen=True, slots=True)
class UnscoredFrame:
    """Rows of one frame that wait for a score. row: their places in the frame."""

    frame: FrameRef
    row: IntArray
    number: LongArray
    sample_index: IntArray
    branch: IntArray
    attempt: IntArray


@dataclass(frozen=True, slots=True)
class Lease:
    """The batch of one step, sorted by (group, sample_index, branch).

    step: the step the learner holds; training on this lease makes step + 1. Row i is row `row[i]` of
    `frames[frame_index[i]]`. rewards is NaN where not valid; so is components, float64 [N, C], a column for each name
    of `QueueSettings.components`. num_tokens: prompt and completion together.
    truncated: it was cut off for its length. oldest_step: lowest step that sampled into the row, -1 for none. waited_s:
    seconds the learner waited for it. unscored_s: the part of that in which all of a batch was sampled, and not scored.
    """

    step: int
    frames: list[FrameRef]
    frame_index: IntArray
    row: IntArray
    group: LongArray
    sample_index: LongArray
    branch: IntArray
    rewards: npt.NDArray[np.float64]
    components: npt.NDArray[np.float64]
    valid: npt.NDArray[np.bool_]
    num_tokens: LongArray
    sampled_tokens: LongArray
    truncated: npt.NDArray[np.bool_]
    oldest_step: LongArray
    waited_s: float = 0.0
    unscored_s: float = 0.0

    @property
    def num_rows(self) -> int:
        return len(self.row)


class OldestRow(msgspec.Struct, frozen=True, kw_only=True):
    """The waiting row that was sampled longest ago. Lies at place `row` of `frame`; oldest_step as in a `Lease`."""

    number: int
    sample_index: int
    branch: int
    oldest_step: int
    frame: FrameRef
    row: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a learner that begins at `step`, that of its checkpoint, finds in the queue.

    steps_again, rows_again: steps trained after it, which take the same groups again, and the rows of these.
    rows_waiting: the other rows that are accepted and not trained. groups_again: issued and unfinished, to be issued
    again; rollouts_again: those of their rollouts that are missing. rows_discarded: of unfinished groups, since the
    data set is another one now (data_changed).
    """

    step: int
    steps_again: int
    rows_again: int
    rows_waiting: int
    groups_again: int
    rollouts_again: int
    data_changed: bool
    rows_discarded: int


class DataOrder(Protocol):
    """Which training item the n-th group takes (`streamrl.tasks.order.PromptOrder`)."""

    def at(self, n: int, /) -> tuple[int, int]:
        """(data_pass, data_index) of group n."""
        ...


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue is told once. `fingerprint` and `seed` name the data and its order; a ledger of another is
    refused. rollout_bytes: the most that one rollout takes when it is alone in its frame. journalled: whether a group
    that is issued again may go on from tokens of the version that it was first issued under. mask_truncated: rows that
    were cut off are not trained. greedy_sample: the sample of each group that the others are compared with, and that is
    not trained itself. components: names of what a valid score has a number for beside its reward."""

    group_size: int
    groups_per_step: int
    max_staleness: int
    byte_budget: int
    rollout_bytes: int
    total_groups: int | None = None
    lead: float | None = None
    late: Literal["wait", "drop", "reissue"] = "wait"
    journalled: bool = False
    filter: FilterConfig = FilterConfig()
    mask_truncated: bool = False
    greedy_sample: int | None = None
    components: tuple[str, ...] = ()
    durability: Literal["disk", "memory"] = "disk"
    commit_interval_s: float = 0.005
    retain: Literal["all", "covered"] = "all"
    disk_budget: int = 2**62
    """Bytes of the log files; the default is no bound."""
    fingerprint: str = ""
    seed: int = 0
    submitted_bytes: int = 2**26
    """Of the prompts of clients that wait for a group; of their trajectories, as many again."""
    streams: dict[str, Share] = {}
    """Of the streams that share the groups, the task's own among them (`streamrl.scheduling.fair_share.TASK`)."""
    quarantine_after: int = 0
    """Groups of one prompt of the task that failed, after which it is started no more; 0 for never."""
    curriculum: CurriculumConfig = CurriculumConfig()


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The queue's books at one moment.

    groups_issued = running + ready + leased + trained + dropped. rows_*: rollout branches by state (`pending`
    counts rollouts not accepted yet, of groups that run). tokens_*: sampled tokens accepted so far = queued +
    leased + trained + dropped; `ignored` ones came a second time or too late and are in none of these.
    bytes_used = reserved for what runs + held by rows that no checkpoint covers yet; bytes_trained of these by trained
    rows. checkpoint_wanted: they leave too little room. prompts_*: of clients, and those of them without a group yet; a
    group of trajectories counts as one. trajectories_*: of clients, and those of them without a group yet.
    prompts_quarantined: of the task; prompts_resting: by the curriculum; prompts_passed_over: turns in the data order
    that these did not get.
    """

    next_step: int
    incarnation: int
    groups_issued: int
    groups_running: int
    groups_orphaned: int
    groups_ready: int
    groups_leased: int
    groups_trained: int
    groups_dropped: dict[str, int]
    groups_reissued: int
    groups_lost: int
    rows_pending: int
    rows_complete: int
    rows_scored: int
    rows_ready: int
    rows_leased: int
    rows_trained: int
    rows_dropped: int
    rows_ignored: int
    rows_lost: int
    rows_unscored: int
    scores_ok: int
    scores_failed: int
    tokens_accepted: int
    tokens_queued: int
    tokens_leased: int
    tokens_trained: int
    tokens_dropped: int
    tokens_ignored: int
    bytes_reserved: int
    bytes_held: int
    bytes_trained: int
    byte_budget: int
    checkpoint_wanted: bool
    prompts_submitted: int = 0
    prompts_waiting: int = 0
    trajectories_offered: int = 0
    trajectories_waiting: int = 0
    prompts_quarantined: int = 0
    prompts_passed_over: int = 0
    prompts_resting: int = 0

    @property
    def bytes_used(self) -> int:
        return self.bytes_reserved + self.bytes_held

    @property
    def rows_waiting(self) -> int:
        """Accepted rows that are neither leased nor trained nor dropped."""
        return self.rows_complete + self.rows_scored + self.rows_ready


def pack(dtype: np.dtype[np.void], columns: Any, *, row: IntArray) -> Records:
    """The attributes of `columns` that `dtype` names, and `row`, as one structured array.

    Raises:
        DataError: the columns differ in length.
    """
    packed = np.empty(len(row), dtype)
    packed["row"] = row
    for name in dtype.names or ():
        if name != "row":
            values = getattr(columns, name)
            if len(values) != len(row):
                raise DataError(f"column {name} has {len(values)} entries, column number has {len(row)}")
            packed[name] = values
    return packed


def unpack(dtype: np.dtype[np.void], data: bytes) -> Records:
    """The structured array that `data` holds.

    Raises:
        DataError: not a whole number of entries.
    """
    if len(data) % dtype.itemsize:
        raise DataError(f"{len(data)} bytes are no whole number of entries of {dtype.itemsize} bytes")
    return np.frombuffer(data, dtype)
