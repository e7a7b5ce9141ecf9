"""What it took replicas to take versions up, for the learner's line of metrics. Pure."""

from typing import NamedTuple


class UpdateTimes(NamedTuple):
    """Seconds of one update of one replica.

    transfer: until the bytes were on its node; 0 where they are published. load: from there until the engine answers
    under it, the check of all digests first. stall: the part of that in which requests were running or waiting and the
    engine was at it; where requests end under their version first (`drain`), that too.
    """

    transfer_s: float
    load_s: float
    stall_s: float


class UpdateLedger:
    """Gathers the updates since they were last taken."""

    def __init__(self) -> None:
        self._updates: list[UpdateTimes] = []

    def add(self, times: UpdateTimes) -> None:
        self._updates.append(times)

    def take(self) -> dict[str, float]:
        """`weights/updates`, how many there were, and the mean and maximum of each part; nothing without updates."""
        updates, self._updates = self._updates, []
        if not updates:
            return {}
        figures: dict[str, float] = {"weights/updates": len(updates)}
        for name, seconds in zip(UpdateTimes._fields, zip(*updates, strict=True), strict=True):
            figures[f"weights/{name}"] = sum(seconds) / len(seconds)
            figures[f"weights/{name.removesuffix('_s')}_max_s"] = max(seconds)
        return figures
