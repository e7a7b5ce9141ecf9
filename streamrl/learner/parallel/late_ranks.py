"""Which of several ranks the others wait for, from what each says of itself. Pure.

A rank that is stopped, or whose thread holds the interpreter, says nothing. Of those that answer, one that is in no
collective is waited for by those that are in one. Where all seem to compute, as on GPUs, whose collectives are queued,
the one that is furthest behind is named, and none where all are equally far.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

ORDER = ("publish", "commit", "checkpoint", "wait", "read", "pack", "forward_backward")
"""The phases between two updates, in their order; others come before them."""


class Progress(msgspec.Struct, frozen=True):
    """Of one rank. step: the one whose weights it has. phase: the last one that it entered. place: where its thread is,
    "" where it has nothing to do or has given up. waits: whether that is in a collective."""

    step: int
    phase: str
    place: str = ""
    waits: bool = False

    @property
    def is_busy(self) -> bool:
        return bool(self.place) and not self.waits

    @property
    def reached(self) -> tuple[int, int]:
        return self.step, ORDER.index(self.phase) if self.phase in ORDER else -1

    def __str__(self) -> str:
        place = f" at {self.place}" if self.place else ""
        return f"in {self.phase} of step {self.step}{place}"


def who_is_late(found: Mapping[int, Progress | None], name: Callable[[int], str]) -> str:
    """A clause that names the rank which hangs, and where it is. found: None for a rank that does not answer."""
    if len(found) == 1:
        return "".join(f"{name(rank)} was {one or 'silent: its process stands still'}" for rank, one in found.items())
    silent = [rank for rank, one in found.items() if one is None]
    told = {rank: one for rank, one in found.items() if one is not None}
    if silent:
        late = f"{_named(silent, name)}: no answer, so its process is stopped or stands still"
        others = told
    else:
        busy = {rank: one for rank, one in told.items() if one.is_busy}
        blamed = _last(busy if 0 < len(busy) < len(told) else told)
        if len(blamed) == len(told):
            return f"no rank is behind the others: {_places(told, name)}"
        late = _places({rank: told[rank] for rank in blamed}, name)
        others = {rank: one for rank, one in told.items() if rank not in blamed}
    return f"the others wait for {late}" + (f" ({_places(others, name)})" if others else "")


def _last(told: Mapping[int, Progress]) -> list[int]:
    least = min(one.reached for one in told.values())
    return [rank for rank, one in told.items() if one.reached == least]


def _named(ranks: Sequence[int], name: Callable[[int], str]) -> str:
    return ", ".join(map(name, ranks))


def _places(told: Mapping[int, Progress], name: Callable[[int], str]) -> str:
    return ", ".join(f"{name(rank)} {one}" for rank, one in told.items())
