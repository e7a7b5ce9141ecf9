"""The watcher, on owners that are plain scripts: whatever dies how, nothing stays."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from streamrl.services.launch import watcher

WAIT_S = 10.0
# Says who it is, and starts a child that no signal to a group reaches and that ignores the polite one.
STUBBORN_CHILD = """
import os, signal, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-S", "-c", "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n"
     "os.write(1, b'1')\\nwhile True: signal.pause()"], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.read(1)
"""
# The same, but the child's parent is a process between: its first thread has ended, another lives.
CHILD_OF_A_HALF_DEAD = (
    STUBBORN_CHILD
    + """
import ctypes, threading
if sys.argv[1:] == ["between"]:
    threading.Thread(target=threading.Event().wait).start()
    print(child.pid, flush=True)
    ctypes.CDLL(None).pthread_exit(None)
child.kill()
between = subprocess.Popen([sys.executable, "-S", "-c", open("/proc/self/cmdline").read().split(chr(0))[3], "between"],
    stdout=subprocess.PIPE)
child.pid = int(between.stdout.readline())
while ") Z " not in open(f"/proc/{between.pid}/stat").read():
    pass
"""
)
OBEDIENT = "signal.signal(signal.SIGINT, lambda *_: os._exit(7))\n"
DEAF = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
READY = "print(os.getpid(), child.pid, flush=True)\nwhile True: signal.pause()\n"


class Watched:
    """A started watcher with its lifeline and the pids of the owner and of the owner's child."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int) -> None:
        assert process.stdout is not None
        self.process = process
        self.lifeline = lifeline
        self.owner, self.child = (psutil.Process(int(pid)) for pid in process.stdout.readline().split())

    def cut(self) -> None:
        os.close(self.lifeline)
        self.lifeline = -1

    def code(self) -> int:
        """The exit code, after which neither owner nor child may live."""
        code = self.process.wait(WAIT_S)
        assert not self.owner.is_running()
        assert not self.child.is_running()
        return code


@contextmanager
def watched(
    *, behaviour: str, folders: list[str], prefixes: list[str], grace_s: float = 5.0, child: str = STUBBORN_CHILD
) -> Iterator[Watched]:
    low, writer = os.pipe()
    # Above what select(2) knows: the starter may hold as many files.
    reader = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
    os.close(low)
    order = {
        "owner": [sys.executable, "-S", "-c", child + behaviour + READY],
        "fds": [],
        "owner_only_fds": [],
        "lifeline_fd": reader,
        "grace_s": grace_s,
        "folders": folders,
        "prefixes": prefixes,
    }
    command = [sys.executable, "-S", "-P", watcher.__file__, json.dumps(order)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[reader], start_new_session=True) as process:
        os.close(reader)
        started = Watched(process, writer)
        try:
            yield started
        finally:
            if started.lifeline >= 0:
                started.cut()


@pytest.fixture
def outside(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A runtime folder with content, a file of ours, and one of somebody else's beside it."""
    runtime, ours, theirs = tmp_path / "srl-1", tmp_path / "streamrl-abc-v1", tmp_path / "streamrl-abd-v1"
    (runtime / "ray").mkdir(parents=True)
    for path in (runtime / "ray" / "socket", ours, theirs):
        path.touch()
    return runtime, ours, theirs


def test_a_cut_lifeline_stops_the_owner_and_removes_only_what_is_ours(
    outside: tuple[Path, Path, Path],
) -> None:
    runtime, ours, theirs = outside
    prefix = str(ours.parent / "streamrl-abc")
    with watched(behaviour=OBEDIENT, folders=[str(runtime)], prefixes=[prefix]) as started:
        started.cut()
        assert started.code() == 7
    assert not runtime.exists()
    assert not ours.exists()
    assert theirs.exists()


def test_a_killed_owner_takes_everything_with_it(outside: tuple[Path, Path, Path]) -> None:
    runtime, *_ = outside
    with watched(behaviour=OBEDIENT, folders=[str(runtime)], prefixes=[]) as started:
        started.owner.kill()
        assert started.code() == 128 + signal.SIGKILL
    assert not runtime.exists()


def test_a_child_whose_parent_is_half_dead_is_ended_too() -> None:
    with watched(behaviour=OBEDIENT, folders=[], prefixes=[], child=CHILD_OF_A_HALF_DEAD) as started:
        started.owner.kill()
        assert started.code() == 128 + signal.SIGKILL


def test_an_owner_that_ignores_the_order_is_killed_when_its_grace_is_over() -> None:
    with watched(behaviour=DEAF, folders=[], prefixes=[], grace_s=0.2) as started:
        started.process.send_signal(watcher.ASK)
        assert started.code() == 128 + signal.SIGKILL


def test_insisting_ends_a_deaf_owner_at_once() -> None:
    with watched(behaviour=DEAF, folders=[], prefixes=[], grace_s=1000.0) as started:
        started.process.send_signal(watcher.ASK)
        started.process.send_signal(watcher.INSIST)
        assert started.code() == 128 + signal.SIGKILL


def test_the_exit_code_of_an_owner_that_ends_by_itself_is_passed_on() -> None:
    with watched(behaviour=OBEDIENT, folders=[], prefixes=[]) as started:
        started.owner.send_signal(signal.SIGINT)
        assert started.code() == 7
