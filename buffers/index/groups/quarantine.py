"""Prompts of the task that fail again and again: they are not started any more. Pure.

A failure is a group that could not be scored, or whose generation the engine refused; a prompt is one item of the data
set, over all its data passes. After `after` failures it is quarantined, and at once where its group ended one replica
after the other (`streamrl.buffers.index.groups.suspects`).

Guaranteed: what is counted follows from the ledger alone, so an opening comes to the same answer, and a group counts
once however often its records are read. A prompt of a client is none of these: its first failure is its answer.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from streamrl.buffers.index.groups.group import Group
from streamrl.buffers.ledger.records import Failed, Quarantined

REASON_CHARS: Final = 300
"""Of a reason that is kept and told."""
SHOWN: Final = 100
"""Of the prompts that are quarantined, in what a person is shown; the ledger has all."""


class Quarantine:
    """after: failures of one prompt; 0 for never.

    Example:
        quarantine.failed(item=3, number=17, reason="ValueError: no answer")
        quarantine.holds(3)
        for record in quarantine.pop_unrecorded(): journal.write(record)
    """

    def __init__(self, after: int) -> None:
        self._after = after
        self._failures: dict[int, dict[int, str]] = {}
        """The groups that failed, with the reasons, by item."""
        self._held: dict[int, Quarantined] = {}
        self._unrecorded: dict[Failed | Quarantined, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def holds(self, item: int) -> bool:
        """Whether no group is started for this item of the data set."""
        return item in self._held

    def failed(self, item: int, number: int, reason: str, *, at_once: bool = False) -> None:
        """Group `number`, of this item, failed. at_once: no further failure is waited for."""
        if not self._after or number in self._failures.setdefault(item, {}):
            return
        failures, reason = self._failures[item], reason[:REASON_CHARS]
        failures[number] = reason
        self._unrecorded[Failed(item, number, reason)] = None
        if item not in self._held and (at_once or len(failures) >= self._after):
            held = self._held[item] = Quarantined(item, number, len(failures), reason)
            self._unrecorded[held] = None

    def in_doubt(self, item: int, running: int) -> bool:
        """Whether `running` groups of this item, should all fail, would have it quarantined."""
        return running > 0 and 0 < self._after <= len(self._failures.get(item, {})) + running

    def recorded(self, record: Failed | Quarantined) -> None:
        """The ledger has it."""
        if isinstance(record, Failed):
            self.failed(record.item, record.number, record.reason)
        self._unrecorded.pop(record, None)

    def pop_unrecorded(self) -> list[Failed | Quarantined]:
        """What the ledger has no record of, by when it came; the caller writes it."""
        unrecorded, self._unrecorded = self._unrecorded, {}
        return list(unrecorded)

    def listed(self) -> list[Quarantined]:
        """All, in the order in which they came."""
        return list(self._held.values())

    def forget(self) -> None:
        """Another data set begins: its items are other prompts."""
        self._failures, self._held, self._unrecorded = {}, {}, {}


def shown(prompts: Sequence[Quarantined]) -> list[dict[str, Any]]:
    """The newest, as plain values, for a person."""
    return [msgspec.structs.asdict(one) for one in prompts[-SHOWN:]]


def fault_of(group: Group) -> str:
    """Why a group that has no scores to compare failed; "" where nothing of it was the prompt's doing: its rollouts
    were aborted."""
    faults = [row.fault for _, row in sorted(group.rows.items()) if row.fault]
    return faults[-1] if faults else ""
