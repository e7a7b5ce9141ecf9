"""What is told of a part's process that died, first cause first. Pure.

how it ended, and for lack of memory or not; what it was doing; what it cost    ->  one line
the same, what it wrote on its way out, its last log lines, and Ray's own words  ->  a file for people
"""

import signal
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streamrl.system.process_exit import describe_exit

LAST_LINES = 50


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """Of the process of one part.

    code: as `ProcessExit.code`. memory_kills: processes of this machine that the kernel ended for lack of memory while
    it lived; None: it does not say. ray: Ray's words, its own lack of memory among them where ray_memory says so.
    doing: in words, heard heard_s before its end; "" for none. cost: of its death, in words. trace: what it wrote on
    its way out. log: its last lines.
    """

    part: str
    pid: int
    code: int | None
    memory_kills: int | None
    ray: str
    ray_memory: bool = False
    doing: str = ""
    heard_s: float = 0.0
    cost: str = ""
    trace: str = ""
    log: Sequence[str] = ()

    def line(self) -> str:
        """One line."""
        doing = f"{self.doing} ({self.heard_s:.0f} s before)" if self.doing else ""
        return "; ".join(filter(None, (f"{self.part}: its process died, {self.how()}", doing, self.cost)))

    def how(self) -> str:
        """How it ended, in words, and whether for lack of memory."""
        if self.ray_memory:
            return f"ended by Ray for lack of memory: {self.ray}"
        if self.code == -signal.SIGKILL:
            return f"ended by SIGKILL, {_of_memory(self.memory_kills)}"
        if not self.code:  # a worker of Ray ends with code 0 whatever made it end, and older kernels tell none
            return self.ray
        fatal = next((line for line in self.trace.splitlines() if line.startswith("Fatal ")), "")
        return describe_exit(self.code) + (f": {fatal}" if fatal else "")

    def text(self) -> str:
        """The whole report."""
        sections = {
            f"{self.part}, pid {self.pid}": self.line(),
            "what Ray says": self.ray,
            "what it wrote on its way out": self.trace,
            f"its last {len(self.log)} log lines": "\n".join(self.log),
        }
        return "\n".join(f"==== {head}\n{body.strip()}\n" for head, body in sections.items() if body.strip())


def doing_of(status: Mapping[str, Any]) -> str:
    """What a part was doing, from what it said of itself: a replica, the reward stage or a rank of the learner."""
    if "doing" in status:
        return f"it was at step {status['step']}, {status['doing']}"
    if "workers" in status:
        return f"{status['busy']} of its {status['workers']} workers were busy"
    return f"it ran {status['running']} completions under version {status['version']}, {status['waiting']} waited"


def _of_memory(kills: int | None) -> str:
    """Whether lack of memory may have been why."""
    if kills is None:
        return "whether for lack of memory the kernel does not say"
    if kills == 0:
        return "not for lack of memory"
    processes = "a process" if kills == 1 else f"{kills} processes"
    return f"for lack of memory: the kernel ended {processes} of this machine for it meanwhile"
