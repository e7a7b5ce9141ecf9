"""Starts a server, outlives it, and leaves nothing behind: no process, no folder.

Guarantees: when this process ends, every process that the server started is gone, in whatever session; as their
subreaper, the kernel makes this process the parent of each orphan. It ends the server when the lifeline breaks: when
whoever started it closes it, or dies, by `kill -9` too. If this process itself is killed, the kernel kills the server.
The server's environment is this one without what belongs to our Python, to Ray and to streamrl.

    engine --(lifeline pipe)--> keeper --> server --> its workers
"""

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from streamrl.system.poll import readable
from streamrl.system.processes import family

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_OURS = ("PYTHON", "RAY_", "STREAMRL_", "VIRTUAL_ENV")
_CLEANING_S = 5.0
_KILL_S = 10.0  # a large process gives its memory back first
_ROUNDS = 20  # one that forks while it is being ended shows up in the next round


def main(order: dict[str, Any]) -> int:
    """`order`: argv and env (of the server, beside what it inherits), lifeline_fd, grace_s (from the polite signal to
    the final one), folders (to remove at the end). Returns the server's exit code, 128 + the signal's number when one
    ended it."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    server = subprocess.Popen(
        order["argv"],
        env={**inherited(os.environ), **order["env"]},
        stdin=subprocess.DEVNULL,
        process_group=0,
        # This process has one thread, and it is the one whose end the kernel looks for.
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    wait(server, order["lifeline_fd"], order["grace_s"])
    end_all()
    for folder in order["folders"]:
        shutil.rmtree(folder, ignore_errors=True)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(_OURS)}


def wait(server: "subprocess.Popen[bytes]", lifeline: int, grace_s: float) -> None:
    """Return when the server has ended; ask it to when the lifeline breaks, and insist after the grace."""
    ends = os.pidfd_open(server.pid)
    ready = readable([ends, lifeline], None)
    if ends not in ready:
        server.send_signal(signal.SIGTERM)
        ready = readable([ends], grace_s)
    if ends not in ready:
        server.kill()
    server.wait()
    os.close(ends)


def end_all() -> None:
    """Kill every process below this one, and reap them; those that clean up behind the others come last."""
    kill_all(lambda pid: not cleans_up(pid))
    # Each ends by itself, with the last process that it serves; unless it was stopped together with the others.
    signal_and_await(family(os.getpid()) - {os.getpid()}, signal.SIGCONT, _CLEANING_S)
    kill_all(lambda pid: True)
    reap()


def kill_all(which: Callable[[int], bool]) -> None:
    for _ in range(_ROUNDS):
        left = {pid for pid in family(os.getpid()) - {os.getpid()} if which(pid)}
        if not left:
            return
        signal_and_await(left, signal.SIGKILL, _KILL_S)


def signal_and_await(pids: Iterable[int], number: int, limit_s: float) -> None:
    """Send them all the signal, and return when the last of them has ended, or at the limit."""
    ends: list[int] = []
    waiting = select.poll()
    for pid in pids:
        with suppress(ProcessLookupError):
            ends.append(end := os.pidfd_open(pid))
            waiting.register(end, select.POLLIN)
            signal.pidfd_send_signal(end, number)
    limit = time.monotonic() + limit_s
    left = set(ends)
    while left and (ready := waiting.poll(1000 * max(0.0, limit - time.monotonic()))):
        for end, _ in ready:
            waiting.unregister(end)
            left.discard(end)
    for end in ends:
        os.close(end)


def reap() -> None:
    """Take note of those that have ended. A process whose parent has ended is a child of this one."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def cleans_up(pid: int) -> bool:
    """Whether it is one of Python's trackers: it removes the shared memory of processes that were killed."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return b"multiprocessing.resource_tracker" in line.read()
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
