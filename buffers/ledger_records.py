"""The records of the ledger: one for each change of state that must survive, in a closed schema.

Rows lie in them as packed bytes (`buffers.records.ACCEPTED`, `SCORED`), since a field for each row would cost
more than the row. Field order and tags are the format: append only.
"""

from typing import Final

import msgspec

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


Record = RunHeader | Incarnation | Writer | Issued | Accepted | Scored | Dropped | Withdrawn | Step | Covered | Lost
