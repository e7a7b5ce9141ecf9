"""Waiting for room on a disk: a full disk is a pause and not a failure.

Nothing tells a process that space has returned, so `DiskSpace` looks again on a clock: slowly, in the thread
that has something to write, and nowhere else in the system. `LowDisk` decides, from the free bytes that it is
told, when to stop taking work on before the disk is full. Neither knows what is written.
"""

from collections.abc import Callable
from threading import Event
from typing import TypeVar

from streamrl.clock import Clock
from streamrl.errors import ResourceError

T = TypeVar("T")

LOOK_EVERY_S = 0.25
"""Seconds between two looks at a full disk."""


class DiskSpace:
    """The pauses of one writer. `wait_for` in the writer's thread; the rest from any.

    Example:
        room = DiskSpace()
        fd = room.wait_for(lambda: create_preallocated(path, 2**24))
    """

    def __init__(self) -> None:
        self._closed = Event()
        self._pause = ""

    @property
    def pause(self) -> str:
        """What it waits for, in words with the figures; "" while it does not."""
        return self._pause

    def wait_for(self, attempt: Callable[[], T]) -> T:
        """What `attempt` returns, as soon as it finds room. It must leave nothing behind when it does not.

        Raises:
            ResourceError: there is still no room, and `close` was called. What else `attempt` raises.
        """
        while True:
            try:
                result = attempt()
            except ResourceError as error:
                self._pause = str(error)
                if self._closed.wait(LOOK_EVERY_S):
                    raise
            else:
                self._pause = ""
                return result

    def close(self) -> None:
        """Wait no longer: who waits looks once more at most."""
        self._closed.set()


class LowDisk:
    """Whether a run may take work on, by the free bytes of its disk. Pure.

    It is low under `min_free_bytes`, or while a part waits for the disk; it is well again a little above, so that
    it does not flutter. A `min_free_bytes` of 0 leaves only the waiting parts.
    """

    def __init__(self, min_free_bytes: int, clock: Clock) -> None:
        self._min_free = min_free_bytes
        self._clock = clock
        self._last_low: float | None = None
        self._low = False

    @property
    def low(self) -> bool:
        return self._low

    def observe(self, free: int, waiting: str = "") -> str:
        """Take in the free bytes and the pause of a part, if one waits. What is to be said now, or ""."""
        needed = self._min_free + (self._min_free // 8 if self._low else 0)
        was, self._low = self._low, bool(waiting) or free < needed
        if self._low:
            self._last_low = self._clock.now()
        if self._low and not was:
            why = waiting or f"{free / 1e6:.0f} MB free, needs {self._min_free * 9 // 8 / 1e6:.0f} MB"
            return f"the disk is nearly full: {why}. Paused; it goes on by itself when there is room"
        if was and not self._low:
            return f"the disk has room again, {free / 1e6:.0f} MB free: going on"
        return ""

    def well_for_s(self) -> float:
        """Seconds since the disk was last seen low; infinite if it never was."""
        return float("inf") if self._last_low is None else self._clock.now() - self._last_low
