"""What ended requests leave in slots that nobody needs, for the next request of their conversation. Pure.

Guaranteed: what is kept never costs a request its slot; it is of the version that serves, since it goes with it; of a
conversation the newest is kept, and of all the ones used last. It knows slots and ids, and no tensors.
"""

from typing import NamedTuple

import numpy as np

from streamrl.types import IntArray, LongArray


class Kept(NamedTuple):
    """Keys and values of `ids` (int64 [n]) lie at the first n places of `slot`. opening: how many of them were read at
    once, and not one by one."""

    slot: int
    ids: LongArray
    opening: int


class KeptPrefixes:
    """Of an engine with so many slots, whose requests lie in the first ones.

    Example:
        kept = KeptPrefixes(slots=64)
        slot = kept.place("rollout", ids, opening, num_rows=12)      # copy the cache there
        found = kept.find("rollout", known, opening)                 # copy it back: slot, and the first so many places
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._kept: dict[str, Kept] = {}
        self._freed: list[int] = []

    def __len__(self) -> int:
        return len(self._kept)

    def place(self, conversation: str, ids: LongArray, opening: int, num_rows: int) -> int | None:
        """The slot where what a request leaves is to be put, from now on kept there; None where all have requests."""
        self.let_go(conversation)
        held = {kept.slot for kept in self._kept.values()}
        free = next((slot for slot in range(self._slots - 1, num_rows - 1, -1) if slot not in held), None)
        if free is None and self.let_go_oldest():
            free = self._freed[-1]
        if free is None or free < num_rows:
            return None
        self._kept[conversation] = Kept(free, ids, opening)
        return free

    def find(self, conversation: str, known: IntArray, opening: int) -> tuple[int, int] | None:
        """(slot, tokens) that a request may begin with; None where there are none.

        known: all its tokens so far, the last of which it reads itself. opening: of these, as `Kept`'s. What is kept of
        another opening was computed in another way, and would round in another way.
        """
        kept = self._kept.get(conversation)
        if kept is None or kept.opening != opening:
            return None
        most = min(len(kept.ids), len(known) - 1)
        differ = np.flatnonzero(kept.ids[:most] != known[:most])
        shared = int(differ[0]) if len(differ) else most
        # What was read at once is there as a whole, but for its last token.
        return (kept.slot, shared) if shared >= max(opening - 1, 1) else None

    def taken(self, conversation: str) -> None:
        """What was found is the request's own now."""
        del self._kept[conversation]

    def let_go(self, conversation: str) -> None:
        """Nothing is kept of it any more."""
        kept = self._kept.pop(conversation, None)
        if kept is not None:
            self._freed.append(kept.slot)

    def let_go_oldest(self) -> bool:
        """Whether there was one."""
        oldest = next(iter(self._kept), None)
        if oldest is not None:
            self.let_go(oldest)
        return oldest is not None

    def make_room(self, num_rows: int) -> None:
        """Requests are going to lie in the first `num_rows` slots."""
        for conversation in [name for name, kept in self._kept.items() if kept.slot < num_rows]:
            self.let_go(conversation)

    def clear(self) -> None:
        """Another version serves."""
        while self.let_go_oldest():
            pass

    def take_freed(self) -> list[int]:
        """The slots of which nothing is kept any more, told once."""
        freed, self._freed = self._freed, []
        return freed
