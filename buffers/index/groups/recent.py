"""The newest groups that finished, and where their rows lie: for people and pages that look at what is sampled. Pure.

Guaranteed: groups come in the order in which they finished, the newest first, each once; the step of each is that which
trained it in the surviving history. What is kept is bounded in rows. With each opening of the queue it begins anew, by
the groups that no checkpoint covers.
"""

from collections import deque
from typing import Final, NamedTuple

import msgspec

from streamrl.buffers.index.groups.group import Group
from streamrl.types import FrameRef

ROWS_KEPT: Final = 10_000
"""Some megabytes: references and numbers, no tokens."""
PAGE_TOKENS: Final = 200_000
"""Of the rows of one page, the first of which comes whatever it has: what a reader holds at once."""


class RecentRow(msgspec.Struct, frozen=True, array_like=True):
    """A row, which is row `row` of `frame`. reward: None where the score is a failed one. components: of the reward, in
    the order of `QueueSettings.components`; none where the score is a failed one."""

    sample_index: int
    branch: int
    frame: FrameRef
    row: int
    sampled_tokens: int
    reward: float | None
    components: tuple[float, ...] = ()


class RecentGroup(msgspec.Struct, frozen=True, array_like=True):
    """A group with all of its rows, by sample and branch. step: that trained it; None until then. start, end: the part
    of `rows` that is on the page."""

    number: int
    step: int | None
    rows: list[RecentRow]
    start: int
    end: int


class Place(NamedTuple):
    """Where a page begins: the group that finished as number `finished`, at this place among its rows."""

    finished: int
    row: int


class RecentGroups:
    """See the module.

    Example:
        recent.finished(group)
        groups, following = recent.page(None, limit=50)
        groups, following = recent.page(following, limit=50)      # the older ones
    """

    def __init__(self, rows_kept: int = ROWS_KEPT, page_tokens: int = PAGE_TOKENS) -> None:
        self._rows_kept = rows_kept
        self._page_tokens = page_tokens
        self._groups: deque[tuple[int, Group]] = deque()
        """With the number of each, in the order in which they finished."""
        self._sizes: deque[int] = deque()
        """Rows of each as it finished: some may be lost later."""
        self._next = 0
        self._num_rows = 0

    def finished(self, group: Group) -> None:
        """A group is complete and scored. One whose rows are lost later is passed over, and finishes again."""
        self._groups.append((self._next, group))
        self._sizes.append(len(group.rows))
        self._next += 1
        self._num_rows += len(group.rows)
        while self._num_rows > self._rows_kept and len(self._groups) > 1:
            self._groups.popleft()
            self._num_rows -= self._sizes.popleft()

    def page(self, place: Place | None, limit: int) -> tuple[list[RecentGroup], Place | None]:
        """(groups with `limit` rows at most, the place where those begin that follow, None behind the last).

        place: None for the newest."""
        page: list[RecentGroup] = []
        room, tokens = limit, self._page_tokens
        for finished, group in reversed(self._groups):
            if place is not None and finished > place.finished:
                continue
            start = place.row if place is not None and finished == place.finished else 0
            end = start
            costs = [group.rows[key].prompt_tokens + group.rows[key].sampled_tokens for key in sorted(group.rows)]
            for cost in costs[start:]:
                if not room or (cost > tokens and (page or end > start)):
                    break
                end, room, tokens = end + 1, room - 1, tokens - cost
            if end > start:
                page.append(_recent_group(group, start, end))
            if end < len(costs):
                return page, Place(finished, end)
        return page, None


def _recent_group(group: Group, start: int, end: int) -> RecentGroup:
    rows = [
        RecentRow(
            sample,
            branch,
            row.frame,
            row.row,
            row.sampled_tokens,
            row.reward if row.valid else None,
            row.components if row.valid else (),
        )
        for (sample, branch), row in sorted(group.rows.items())
    ]
    return RecentGroup(group.number, group.step, rows, start, end)
