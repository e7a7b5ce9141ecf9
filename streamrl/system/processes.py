"""Ends whole families of processes: a session leader of ours, and what it started, whoever reaped what.

Guarantees that a process is taken for one of the family only by what the kernel says of it. Linux; elsewhere
only the process group is ended. A program that left the session (`setsid`) is found while its parent lives, and
not after: then only a subreaper above it knows it.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress

_ROUNDS = 10  # one that forks while it is being ended shows up in the next round


def end_session(leader: int) -> None:
    """Send SIGKILL to a session leader, alive or not yet reaped, and to all of its family.

    The leader must be a child of this process that was not reaped, so that its number is nobody else's.
    """
    if sys.platform != "linux":
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        return
    ended: set[int] = set()
    for _ in range(_ROUNDS):
        found = family(leader) - ended
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended |= found


def family(leader: int) -> set[int]:
    """Live processes in the session of `leader`, or below one of them; itself included. Linux."""
    facts = {pid: (parent, session) for pid, parent, session in _processes()}
    found = {pid for pid, (_, session) in facts.items() if session == leader}
    while more := {pid for pid, (parent, _) in facts.items() if parent in found} - found:
        found |= more
    return found


def _processes() -> Iterator[tuple[int, int, int]]:
    """(pid, parent, session) of every process that is no zombie. Fields of proc(5) after the name in brackets:
    state, parent, group, session.
    """
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat") as file:
                stat = file.read()
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, parent, _, session = stat[stat.rindex(")") + 2 :].split()[:4]
        if state not in "ZX":
            yield int(entry), int(parent), int(session)
