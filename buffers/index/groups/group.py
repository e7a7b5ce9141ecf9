"""One group and its rows, as the index keeps them in memory, and the tallies that close the books. Pure."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from streamrl.buffers.rows.records import Records
from streamrl.scheduling.staleness import Candidate
from streamrl.types import FrameRef


class GroupState(StrEnum):
    """Where a group is. While it runs, its rollouts are pending, complete or scored; then as the group."""

    RUNNING = "running"
    READY = "ready"
    LEASED = "leased"
    TRAINED = "trained"
    DROPPED = "dropped"

    __hash__ = str.__hash__  # an enum's own is no builtin, and the tallies look states up for every group


class Row(msgspec.Struct, eq=False, gc=False):
    """One accepted row. truncated: it was cut off for its length. reward and components (in the order of
    `QueueSettings.components`) count only where valid; valid only once scored. bundle: the scoring board's; None where
    nobody is to score it. fault: why its score is a failed one; "" where that is not its prompt's doing.

    The collector does not look at rows, which are most of what a queue holds. Their one cycle, row and bundle, is
    undone when a row is scored or dropped."""

    frame: FrameRef
    row: int
    attempt: int
    prompt_tokens: int
    sampled_tokens: int
    oldest_step: int
    truncated: bool = False
    scored: bool = False
    valid: bool = False
    reward: float = float("nan")
    bundle: "Bundle | None" = None
    components: tuple[float, ...] = ()
    fault: str = ""


@dataclass(slots=True, eq=False)
class Bundle:
    """Rows of one frame that are handed out together. names: of each row, type ACCEPTED. num_wanted: of them.
    scorer: who has them; None while they wait."""

    frame: FrameRef
    names: Records
    rows: list[Row]
    num_wanted: int
    scorer: str | None = None


@dataclass(slots=True)
class Group:
    """A group that was issued and is not forgotten yet.

    position: of its prompt, in the data order; among the submitted ones where `submitted`. step: whose batch it was
    trained with; None until it is. item: of the data set, or the position again where `submitted`. deaths: of replicas
    that had it.
    floor: rows of attempts below it come too late. replica: who runs it, None if nobody does. reserved: bytes
    set aside for rollouts that are not there yet. rows: by (sample index, branch). samples: rollouts
    accepted.
    """

    number: int
    attempt: int
    last_step: int
    issued_at: float
    reserved: int
    position: int
    item: int
    submitted: bool = False
    deaths: int = 0
    floor: int = 0
    replica: str | None = None
    state: GroupState = GroupState.RUNNING
    step: int | None = None
    rows: dict[tuple[int, int], Row] = field(default_factory=dict)
    samples: set[int] = field(default_factory=set)
    num_scored: int = 0
    sampled_tokens: int = 0
    num_bytes: int = 0

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.number, self.last_step)

    def valid_rows(self) -> dict[tuple[int, int], Row]:
        """Those with a valid score, by sample and branch."""
        return {key: row for key in sorted(self.rows) if (row := self.rows[key]).valid}


@dataclass(slots=True)
class Tally:
    """Groups, rows and sampled tokens by state; running groups count with the rows they have so far."""

    groups: Counter[GroupState] = field(default_factory=Counter)
    rows: Counter[GroupState] = field(default_factory=Counter)
    tokens: Counter[GroupState] = field(default_factory=Counter)

    def enter(self, group: Group) -> None:
        """Book a new group, which has no rows, in its state."""
        self.groups[group.state] += 1

    def move(self, groups: Collection[Group], state: GroupState) -> None:
        """Book groups that are in one state from it to another, and set it."""
        if not groups:
            return
        (before,) = {group.state for group in groups}
        moved = len(groups), sum(len(group.rows) for group in groups), sum(group.sampled_tokens for group in groups)
        for counter, amount in zip((self.groups, self.rows, self.tokens), moved, strict=True):
            counter[before] -= amount
            counter[state] += amount
        for group in groups:
            group.state = state

    def add_rows(self, state: GroupState, count: int, sampled_tokens: int) -> None:
        """Book rows with so many sampled tokens in all."""
        self.rows[state] += count
        self.tokens[state] += sampled_tokens

    def discard_rows(self, group: Group) -> None:
        """Book the rows of a group as dropped; the group itself stays where it is."""
        for counter, amount in ((self.rows, len(group.rows)), (self.tokens, group.sampled_tokens)):
            counter[group.state] -= amount
            counter[GroupState.DROPPED] += amount
