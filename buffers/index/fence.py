"""Who may still write, and what came before: fencing by epoch, idempotence by sequence number.

Guaranteed: once a writer's epoch rose, everything of a lower one is refused; a sequence number of an epoch
counts once, in whatever order the numbers come. Memory is bounded by the numbers that are out of order. Pure.
"""

from dataclasses import dataclass, field

from streamrl.errors import DataError, FencedError


@dataclass(slots=True)
class _Writer:
    epoch: int
    floor: int = 0
    """Every sequence number below it has been seen."""
    beyond: set[int] = field(default_factory=set)


class WriterFence:
    """The epochs and sequence numbers of all writers, by name."""

    def __init__(self) -> None:
        self._writers: dict[str, _Writer] = {}

    def epochs(self) -> dict[str, int]:
        return {name: writer.epoch for name, writer in self._writers.items()}

    def raise_epoch(self, name: str, epoch: int) -> bool:
        """Make `epoch` the writer's current one; whether it was lower before, or unknown.

        Raises:
            FencedError: the current epoch is higher.
        """
        writer = self._writers.get(name)
        if writer is not None and epoch < writer.epoch:
            raise FencedError(
                f"{name} acts under epoch {epoch}, but epoch {writer.epoch} has replaced it: this process must end"
            )
        if writer is not None and epoch == writer.epoch:
            return False
        self._writers[name] = _Writer(epoch)
        return True

    def seen(self, name: str, sequence: int) -> bool:
        """Whether a sequence number of the current epoch was marked before.

        Raises:
            DataError: a negative number; it would count as seen, and what came with it would be lost.
        """
        if sequence < 0:
            raise DataError(f"{name} counts from 0, and says {sequence}")
        writer = self._writers[name]
        return sequence < writer.floor or sequence in writer.beyond

    def mark(self, name: str, sequence: int) -> None:
        """Count a sequence number of the current epoch as seen."""
        writer = self._writers[name]
        writer.beyond.add(sequence)
        while writer.floor in writer.beyond:
            writer.beyond.remove(writer.floor)
            writer.floor += 1
