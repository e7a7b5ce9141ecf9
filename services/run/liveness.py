"""Which process is it? A pid alone is reused; a pid with its start time is not.

Linux only: both come from `/proc`. Knows nothing of runs, locks or Ray.
"""

import os
from pathlib import Path

import msgspec


class ProcessId(msgspec.Struct, frozen=True):
    """One process of this machine, for good: `start_ticks` is its start, in clock ticks since boot."""

    pid: int
    start_ticks: int

    @classmethod
    def own(cls) -> "ProcessId":
        """The process that calls."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """The process that has this pid now; one that is never alive if there is none."""
        return cls(pid, _start_ticks(pid) or 0)

    def is_alive(self) -> bool:
        """Whether exactly this process still runs. A zombie does not."""
        return _start_ticks(self.pid) == self.start_ticks

    def signal(self, number: int) -> bool:
        """Send a signal to exactly this process. Returns whether it was there to receive it."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def _start_ticks(pid: int) -> int | None:
    """Start time of a live process, or None. Fields of proc(5) after the name in brackets: state, ...,
    22nd.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])
