"""How many groups a replica takes, by what its engine says of its KV cache. Pure.

Guarantees: at most `slots` requests at once (one group, where that is more); none beyond those that run while the cache
is nearly full or requests wait for a part of it; and a replica with nothing to do always takes. It begins with `slots`,
since a cache that is large enough never limits anybody; what did not fit is taken back in small steps. It knows
neither time nor engines: whoever asks says what ended, what runs, and what the server said last.
"""

from streamrl.types import ServerLoad

FULL = 0.9
"""Share of a KV cache in use from which on no group is taken: requests that run grow, and one that finds no room is
thrown out and computed again."""
CROWDED = 0.5
"""The same while requests wait. With more of the cache free they wait for the server to read their prompts, not for
room."""
_BATCHES = 4
"""Groups are taken for a quarter of the slots at a time, so that prompts are read together; a lowered limit grows by as
much in the time in which all requests end once."""


class ReplicaCapacity:
    """For one replica.

    Example:
        room = ReplicaCapacity(slots=64, group_size=8)
        capacity.update(stats.load)
        groups = room.groups(in_flight=40)      # 0: ask again when something has ended
        room.ended(5)
    """

    def __init__(self, slots: int, group_size: int) -> None:
        self._most = max(slots, group_size)
        self._group_size = group_size
        self._least = max(1, slots // group_size // _BATCHES)
        self._load: ServerLoad | None = None
        self.limit = float(self._most)
        """Requests that may run at once now."""

    @property
    def tight(self) -> bool:
        """Whether the cache has no room for more. Never of an engine that keeps room for each of its slots."""
        return self._load is not None and self._load.kv_use >= (CROWDED if self._load.waiting else FULL)

    def update(self, load: ServerLoad | None) -> None:
        """What the server says of itself; None of an engine that keeps room for each of its slots."""
        self._load = load
        if load is not None and self.tight:
            # Those that have room are as many as fit. The same word twice changes nothing.
            self.limit = max(float(self._group_size), min(self.limit, load.running))

    def ended(self, count: int) -> None:
        """So many requests have ended."""
        if not self.tight:
            step = self._least * self._group_size
            self.limit = min(float(self._most), self.limit + step * count / self.limit)

    def groups(self, in_flight: int) -> int:
        """Groups to take now; 0 for none before something has ended. in_flight: requests that run or wait."""
        if not in_flight:
            return max(1, int(self.limit) // self._group_size)
        room = 0 if self.tight else (int(self.limit) - in_flight) // self._group_size
        least = min(self._least, max(1, int(self.limit) // self._group_size // _BATCHES))
        return room if room >= least else 0
