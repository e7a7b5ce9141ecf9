"""The stacks of all processes of a run on one node, as text.

    processes that answer (`streamrl.system.stacks`), and all below them  ->  py-spy, where it may  ->  else their own
    answer

Guarantees: no process is sent a signal that it does not catch, or that was not meant for it; none is waited for longer
than `ANSWER_S`, nor all together longer than `DUMP_S`; what cannot be had is said in its place. Blocks: call it off the
event loop. Only processes of this node are seen; one that has not got as far as to answer is seen if one above it does.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from streamrl.clock import SystemClock
from streamrl.system import stacks

ANSWER_S = 10.0
"""For one process: py-spy reads the symbols of all its libraries first."""
DUMP_S = 60.0
QUIET_S = 0.2
"""An answer that has not grown for so long has ended: it has no end mark, and a file tells nobody that it grew."""
OWNER = "owner"
"""Below it is all of Ray, so what is below it is not looked at."""


class Seen(NamedTuple):
    """A process to look at. answers: the file that it answers in, if it does."""

    name: str
    process: psutil.Process
    answers: Path | None


def dump(folder: Path, py_spy: Path | None) -> tuple[str, int]:
    """(text, number of processes) of those that answer in `folder` and of what they started; files of processes that
    are gone are removed. py_spy: the program; None: each process is asked itself."""
    seen, parts, clock = processes(folder), [], SystemClock()
    until = clock.now() + DUMP_S
    for one in seen:
        text = _of(one, py_spy) if clock.now() < until else f"no stacks: {DUMP_S:g} s for all were over"
        parts.append(f"==== {one.name}, pid {one.process.pid}\n{text.strip()}\n")
    return "\n".join(parts), len(seen)


def processes(folder: Path) -> list[Seen]:
    """Those that answer in `folder`, by name, each followed by what it started and does not answer."""
    answering = {one.process.pid: one for one in _answering(folder)}
    found: dict[int, Seen] = {}
    for pid, one in answering.items():
        found[pid] = one
        for child in _below(one.process) if one.name != OWNER else ():
            if child.pid not in answering:
                found.setdefault(child.pid, Seen(f"{one.name} > {_title(child)}", child, None))
    return list(found.values())


def find_py_spy() -> Path | None:
    """The program beside this interpreter, or on the path; None where there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    return Path(found) if found else None


def _answering(folder: Path) -> Iterator[Seen]:
    for path in sorted(folder.glob("*.*")):
        name, _, pid = path.name.rpartition(".")
        with suppress(OSError, psutil.Error, ValueError):
            if _has_open(int(pid), path):
                yield Seen(name, psutil.Process(int(pid)), path)
                continue
        path.unlink(missing_ok=True)


def _has_open(pid: int, path: Path) -> bool:
    """Whether the process of this number is the one that answers there: numbers are given out again."""
    wanted = path.stat()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
    return False


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())[:80] or process.name()
    return "gone"


def _of(one: Seen, py_spy: Path | None) -> str:
    """The stacks of a process by the best way that there is, or why there are none."""
    ways: list[Callable[[], str]] = []
    if py_spy is not None:
        ways.append(lambda: _by_py_spy(one.process.pid, py_spy))
    if one.answers is not None:
        ways.append(lambda: _by_itself(one))
    whys = ["" if ways else "it does not answer by itself, and py-spy is not installed"]
    for way in ways:
        try:
            return way()
        except (OSError, psutil.Error, subprocess.SubprocessError, _NoAnswerError) as error:
            whys.append(f"{type(error).__name__}: {error}" if not isinstance(error, _NoAnswerError) else str(error))
    return "no stacks: " + "; ".join(filter(None, whys))


class _NoAnswerError(Exception):
    """A way leads to no stacks. Never leaves this module."""


def _by_py_spy(pid: int, py_spy: Path) -> str:
    done = subprocess.run(
        [py_spy, "dump", "--pid", str(pid)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=ANSWER_S,
        check=False,
    )
    if done.returncode:
        raise _NoAnswerError(f"py-spy: {' '.join(done.stderr.split()) or done.returncode}")
    return f"by py-spy\n{done.stdout}"


def _by_itself(one: Seen) -> str:
    """Send the signal and read what it writes until that has been quiet for a moment."""
    assert one.answers is not None
    os.truncate(one.answers, 0)
    if not _catches(one.process.pid):
        raise _NoAnswerError("it does not catch the signal any more")
    one.process.send_signal(stacks.SHOW)
    size, clock = 0, SystemClock()
    began = quiet_since = clock.now()
    # The whole time for its first byte: a machine that is very busy lets a handler wait.
    while clock.now() - began < ANSWER_S and not (size and clock.now() - quiet_since > QUIET_S):
        time.sleep(QUIET_S / 10)
        if (now := one.answers.stat().st_size) != size:
            size, quiet_since = now, clock.now()
    text = one.answers.read_text(errors="replace")
    os.truncate(one.answers, 0)
    if not text:
        raise _NoAnswerError(f"it was asked itself, and wrote nothing in {ANSWER_S:g} s")
    return f"by itself\n{text}"


def _catches(pid: int) -> bool:
    """Whether a process has a handler for the signal, which would end it otherwise. See proc(5)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (stacks.SHOW - 1) & 1)
    return False
