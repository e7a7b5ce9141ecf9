"""Which versions a run has published, as its ledger tells it. Pure.

An incarnation begins with the version of the step that it goes on from, and each step that is trained makes the next.
"""

from streamrl.buffers.ledger.records import Incarnation, Record, Step
from streamrl.types import Version


class PublishedVersions:
    """Example:
    published.note(record)                      # every record, as it is written or read back
    if published.has(Version(0, 3), training=False): ...
    """

    def __init__(self) -> None:
        self._steps: dict[int, tuple[int, int]] = {}
        """First and last step by incarnation."""
        self._now = -1

    def note(self, record: Record) -> None:
        """Take in a record of the ledger."""
        match record:
            case Incarnation(number, step):
                self._now = number
                self._steps[number] = step, step
            case Step(step) if self._now in self._steps:
                first, _ = self._steps[self._now]
                self._steps[self._now] = first, step + 1
            case _:
                pass

    def has(self, version: Version, training: bool) -> bool:
        """Whether it was published. training: a step is under way, whose version may be out before it is booked."""
        first, last = self._steps.get(version.incarnation, (0, -1))
        return first <= version.step <= last + (training and version.incarnation == self._now)
