"""Prompts that clients submitted to be trained on, and what became of each. Pure.

    WAITING -> RUNNING -> FINISHED        all three may become DROPPED, with a reason
                ^------------+            its rows are lost with their node

Guaranteed: a key names one prompt for ever, however often it is submitted; prompts of a stream are given out in the
order in which they came, each once. The text of a prompt is kept until its group has ended, and what its rows are for
the newest `RESULTS_KEPT` that did; that it ended, and how, is always known.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from streamrl.buffers.index.groups.group import Group
from streamrl.errors import DataError
from streamrl.ids import prompt_digest
from streamrl.tasks.base import Prompt, StreamPrompt, SubmittedPrompt
from streamrl.types import FrameRef

RESULTS_KEPT: Final = 10_000


class SubmissionState(StrEnum):
    """Where a submitted prompt is. FINISHED: its group is complete and scored; training goes on without a word here."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    DROPPED = "dropped"


class ScoredRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of a finished group, which is row `row` of `frame`. reward: None where the score is a failed one."""

    sample_index: int
    branch: int
    frame: FrameRef
    row: int
    reward: float | None


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What became of a submitted prompt. group: its group's number, -1 without one. reason: of one that was dropped.
    rows: of one that finished, by sample and branch; None when they are not known any more."""

    item: int
    state: SubmissionState
    group: int
    reason: str = ""
    rows: list[ScoredRow] | None = None


@dataclass(slots=True)
class _Submission:
    stream: str
    prompt: Prompt | None
    state: SubmissionState = SubmissionState.WAITING
    group: int = -1
    reason: str = ""
    rows: list[ScoredRow] | None = None


class Submissions:
    """See the module. Prompts are numbered from 0, in the order in which they came.

    Example:
        submissions = Submissions()
        (item,) = submissions.add("agents", [SubmittedPrompt("a1", "1+1=", '{"answer":"2"}')])
        prompt = submissions.prompt(submissions.first("agents"))
        submissions.issued(item, group=17)
    """

    def __init__(self) -> None:
        self._items: list[_Submission] = []
        self._by_key: dict[tuple[str, str], int] = {}
        self._waiting: dict[str, deque[int]] = {}
        self._waiting_bytes = 0
        self._with_rows: dict[int, None] = {}
        """Those whose rows are known, the one that finished first in front."""
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self._items)

    @property
    def waiting_bytes(self) -> int:
        """Of the texts and payloads of those that wait."""
        return self._waiting_bytes

    @property
    def num_waiting(self) -> int:
        """Prompts that no group was issued for yet."""
        return sum(map(len, self._waiting.values()))

    def streams(self) -> list[str]:
        """Those that have a prompt waiting."""
        return [stream for stream, items in self._waiting.items() if items]

    def unknown(self, stream: str, asked: Iterable[SubmittedPrompt]) -> list[SubmittedPrompt]:
        """Those whose key is a new one, each once."""
        fresh = {one.key: one for one in asked if (stream, one.key) not in self._by_key}
        return list(fresh.values())

    def add(self, stream: str, asked: Sequence[SubmittedPrompt]) -> list[int]:
        """Take prompts; the number of each. One whose key is known is the one that it was."""
        for one in self.unknown(stream, asked):
            item = self._by_key[stream, one.key] = len(self._items)
            # With its number: two prompts of one text are two, and their rollouts have other seeds.
            content = "\x00".join(("submitted", stream, one.key, one.payload, one.text))
            self._items.append(_Submission(stream, Prompt(prompt_digest(content, item), one.text, one.payload)))
            self._waiting.setdefault(stream, deque()).append(item)
            self._waiting_bytes += num_bytes(one)
        return [self._by_key[stream, one.key] for one in asked]

    def known(self, stream: str, keys: Iterable[str]) -> list[int | None]:
        """The numbers of the prompts of these keys; None for one that nobody submitted."""
        return [self._by_key.get((stream, key)) for key in keys]

    def first(self, stream: str) -> int:
        """The prompt of a stream that comes next."""
        return self._waiting[stream][0]

    def stream(self, item: int) -> str:
        return self._item(item).stream

    def prompt(self, item: int) -> StreamPrompt | None:
        """None where it is not needed any more: its group has ended for good."""
        one = self._item(item)
        return None if one.prompt is None else StreamPrompt(one.stream, one.prompt)

    def issued(self, item: int, group: int) -> None:
        """A group was issued for it."""
        one = self._item(item)
        self._waits_no_more(item)
        one.state, one.group = SubmissionState.RUNNING, group

    def finished(self, item: int, group: Group) -> None:
        """Its group is complete and scored."""
        one = self._item(item)
        one.state = SubmissionState.FINISHED
        one.rows = [
            ScoredRow(sample, branch, row.frame, row.row, row.reward if row.valid else None)
            for (sample, branch), row in sorted(group.rows.items())
        ]
        self._with_rows[item] = None
        self._ends.append(item)
        if len(self._with_rows) > RESULTS_KEPT:
            self._let_go(next(iter(self._with_rows)))

    def begins_again(self, item: int) -> None:
        """Its group's rows are lost: it runs again."""
        self._item(item).state = SubmissionState.RUNNING
        self._let_go(item)

    def dropped(self, item: int, reason: str) -> None:
        """It will not be trained on, or not any more."""
        one = self._item(item)
        self._waits_no_more(item)
        one.state, one.reason, one.prompt = SubmissionState.DROPPED, reason, None
        self._ends.append(item)
        self._let_go(item)

    def covered(self, item: int) -> None:
        """A checkpoint holds what its group did: its text is not needed any more. Of a past that is read back, its rows
        may never have been told."""
        one = self._item(item)
        one.state, one.prompt = SubmissionState.FINISHED, None

    def ended(self, items: Iterable[int]) -> list[Outcome]:
        """What became of those that have ended."""
        over = (SubmissionState.FINISHED, SubmissionState.DROPPED)
        return [self.outcome(item) for item in items if self._item(item).state in over]

    def ends(self, after: int) -> list[int]:
        """The prompts that ended, in that order, without the first `after` of them; one that began again and ended is
        there twice."""
        return self._ends[after:]

    def outcome(self, item: int) -> Outcome:
        one = self._item(item)
        return Outcome(item, one.state, one.group, one.reason, one.rows)

    def _waits_no_more(self, item: int) -> None:
        one = self._items[item]
        if one.state is SubmissionState.WAITING and one.prompt is not None:
            self._waiting[one.stream].remove(item)
            self._waiting_bytes -= num_bytes(one.prompt)

    def _let_go(self, item: int) -> None:
        self._with_rows.pop(item, None)
        self._items[item].rows = None

    def _item(self, item: int) -> _Submission:
        if not 0 <= item < len(self._items):
            raise DataError(f"prompt {item} was never submitted; there are {len(self._items)}")
        return self._items[item]


def num_bytes(prompt: SubmittedPrompt | Prompt) -> int:
    """Of its text and its payload."""
    return len(prompt.text.encode()) + len(prompt.payload.encode())
