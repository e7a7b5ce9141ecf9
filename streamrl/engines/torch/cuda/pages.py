"""Which pages of the KV cache belong to which row: a page table with counted references. Pure.

Guaranteed: pages of all rows together are never more than there are; a row has pages for every token that it may ever
have before it starts, so no request stops half-way for want of memory. Rows that begin with the same tokens share the
pages that these fill; a page is free again when its last row lets it go. Page 0 belongs to nobody: whatever is not a
row's own is told to go there.
"""

import numpy as np
import numpy.typing as npt

from streamrl.types import LongArray

PAGE = 32
"""Tokens of one page."""


def pages_for(tokens: int) -> int:
    """Pages that hold so many tokens."""
    return -(-tokens // PAGE)


class PageTable:
    """Pages 1..pages-1 for `rows` rows of at most `width` pages each."""

    def __init__(self, pages: int, rows: int, width: int) -> None:
        self.table = np.zeros((rows, width), dtype=np.int32)
        self._held = np.zeros(rows, dtype=np.int64)
        self._references = np.zeros(pages, dtype=np.int64)
        self._free = list(range(pages - 1, 0, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def total(self) -> int:
        """Pages that rows can hold."""
        return len(self._references) - 1

    @property
    def used(self) -> int:
        """Pages that some row holds."""
        return self.total - self.free

    def reserve(self, row: int, tokens: int) -> None:
        """Give an empty row pages for `tokens` tokens. There must be enough free ones."""
        self._extend(row, 0, pages_for(tokens))

    def grow(self, row: int, tokens: int) -> None:
        """Give a row that holds pages further ones, for `tokens` tokens in all. There must be enough free ones."""
        held = int(self._held[row])
        self._add(row, held, pages_for(tokens))

    def keep(self, row: int, slot: int, tokens: int) -> None:
        """Have an empty row `slot` hold the pages of the first tokens of `row`, which is empty then."""
        last = pages_for(tokens)
        self.move(np.array([row]), np.array([slot]))
        surplus = self.table[slot, last : self._held[slot]].copy()
        self._let_go(surplus)
        self.table[slot, last:] = 0
        self._held[slot] = last

    def share(self, row: int, leader: int, shared: int, tokens: int) -> None:
        """Give an empty row the first `shared` pages of row `leader`, and pages of its own for what follows, up to
        `tokens` tokens."""
        common = self.table[leader, :shared]
        self.table[row, :shared] = common
        self._references[common] += 1
        self._extend(row, shared, pages_for(tokens))

    def _extend(self, row: int, first: int, stop: int) -> None:
        assert not self._held[row], f"row {row} holds pages already"
        self._add(row, first, stop)

    def _add(self, row: int, first: int, stop: int) -> None:
        taken = [self._free.pop() for _ in range(first, stop)]
        self.table[row, first:stop] = taken
        self._references[taken] += 1
        self._held[row] = stop

    def release(self, rows: npt.ArrayLike) -> None:
        """Take the pages of these rows back. A row without pages stays as it is."""
        for row in np.asarray(rows).tolist():
            self._let_go(self.table[row, : self._held[row]])
            self.table[row] = 0
            self._held[row] = 0

    def _let_go(self, pages: npt.NDArray[np.int32]) -> None:
        """Of one row, which holds no page twice."""
        self._references[pages] -= 1
        self._free += pages[self._references[pages] == 0].tolist()

    def move(self, sources: LongArray, targets: LongArray) -> None:
        """Move rows, all at once; a row that is moved away and not moved to is empty afterwards."""
        table, held = self.table[sources], self._held[sources]
        self.table[sources] = 0
        self._held[sources] = 0
        self.table[targets], self._held[targets] = table, held


class PageBudget:
    """How many more requests fit, counted before they start. pages: those that are free."""

    def __init__(self, pages: int) -> None:
        self._left = pages

    def take(self, tokens: int, shared_tokens: int = 0) -> bool:
        """Count a request of `tokens` tokens in, of which the first `shared_tokens` are those of one that was counted
        before. Returns whether it fits; one that does not is not counted."""
        pages = pages_for(tokens) - shared_tokens // PAGE
        if pages > self._left:
            return False
        self._left -= pages
        return True
