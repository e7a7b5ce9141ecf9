"""The records of the ledger: one for each change of state that must survive, in a closed schema.

Rows lie in them as packed bytes (`streamrl.buffers.rows.records.ACCEPTED`, `SCORED`), since a field for each row would
cost more than the row. Field order and tags are the format: append only.
"""

from typing import Final

import msgspec

from streamrl.tasks.base import SubmittedPrompt
from streamrl.types import FrameRef, Ticket

LEDGER_SCHEMA: Final = 1


class RunHeader(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """First record of every file. previous_bytes: good bytes of the file before, -1 for the first file."""

    schema: int
    fingerprint: str
    seed: int
    group_size: int
    previous_bytes: int


class Incarnation(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The run goes on from `step`; what was made after it is a lost branch of history."""

    number: int
    step: int


class Writer(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """`name` writes under `epoch` from here on; lower epochs are fenced."""

    name: str
    epoch: int


class Issued(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Groups given out; the data cursor is the highest number + 1."""

    replica: str
    tickets: list[Ticket]


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Rows taken, packed as ACCEPTED."""

    replica: str
    frame: FrameRef
    rows: bytes


class Scored(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Verdicts taken, packed as SCORED."""

    scorer: str
    frame: FrameRef
    rows: bytes


class Dropped(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Groups that will not be trained."""

    numbers: list[int]
    reason: str


class Withdrawn(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Running groups taken back at `step`, their rows so far discarded, to be issued again."""

    numbers: list[int]
    step: int


class Step(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """The groups trained at `step`, ascending. A later record of the same step replaces an earlier one."""

    step: int
    numbers: list[int]


class Covered(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """A durable checkpoint holds everything trained at steps below `step`."""

    step: int


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Groups taken back at `step`, since `rows` accepted rows of theirs lie on a node that is gone; to be issued again.

    unplanned: the first step that will not take the groups again that it had; -1 if every step does.
    """

    numbers: list[int]
    step: int
    rows: int
    unplanned: int


class Submitted(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Prompts that a client gave to `stream`, none of them known before. They are numbered in the order of the
    ledger, from 0."""

    stream: str
    asked: list[SubmittedPrompt]


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Submitted prompts, by number, that no group was issued for and none will be."""

    items: list[int]
    reason: str


class Offered(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """A trajectory with its reward, made elsewhere than by a replica's rollout; it waits for the others of its group.
    They are numbered in the order of the ledger, from 0.

    group: what the client calls its group. key: what it calls the trajectory; digest: of what was said of it. rows:
    its branches, packed as ACCEPTED, and scores: their verdicts, packed as SCORED, in `frame` and `score_frame`. Number
    and sample index are those of a group that is not there yet: 0. components: in the order of the run's names.
    """

    group: str
    key: str
    digest: int
    frame: FrameRef
    rows: bytes
    score_frame: FrameRef
    scores: bytes
    reward: float
    components: list[float]


class Gathered(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Offered trajectories, by number, are the samples of a group now, in this order. The records of the group stand
    behind it, in the same commit."""

    number: int
    items: list[int]


class Declined(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Offered trajectories, by number, that no group was made of and none will be."""

    items: list[int]
    reason: str


class Died(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The replica that had these groups, unfinished, has died. Stands right behind the `Writer` that fences it, in the
    same commit."""

    numbers: list[int]


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Group `number`, of `item` of the data set, came to nothing by its prompt's doing. It outlives the verdicts that
    say so, which may be let go with the group's rows."""

    item: int
    number: int
    reason: str


class Quarantined(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """No group is started any more for `item` of the data set, of which so many groups failed, `number` the last. A
    recovery counts by itself; this is for those who read the ledger, and says that it was told."""

    item: int
    number: int
    failures: int
    reason: str


class Measured(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Finished groups of the data's prompts, for a curriculum that acts: the item of each, its group's number, the data
    pass and the mean reward. They outlive the verdicts that say so."""

    items: list[int]
    numbers: list[int]
    passes: list[int]
    means: list[float]


class Rescored(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """Verdicts of another reward on rows that have been scored, or wait to be, packed as SCORED: what is trained behind
    this record learns from them. All of one rescoring stand in one commit. revision: 1 for the first one."""

    scorer: str
    frame: FrameRef
    rows: bytes
    revision: int


Record = (
    RunHeader
    | Incarnation
    | Writer
    | Issued
    | Accepted
    | Scored
    | Dropped
    | Withdrawn
    | Step
    | Covered
    | Lost
    | Submitted
    | Cancelled
    | Offered
    | Gathered
    | Declined
    | Died
    | Failed
    | Quarantined
    | Rescored
    | Measured
)
