"""How a process ended that is no child of ours, as the kernel tells."""

import os
import platform
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamrl.system.process_exit import ProcessExit, describe_exit, memory_kills

LIMIT_S = 60
TELLS = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 15)
"""Whether this kernel tells how a process ended."""

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(child.pid, flush=True)
child.wait()
"""
WAITS = "import os, signal, sys; sys.stdin.readline(); "


@contextmanager
def grandchild(end: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """(pid, its parent): a process that does `end` once its parent's standard input, which is its own, has a line."""
    command = [sys.executable, "-c", PARENT, WAITS + end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        yield int(parent.stdout.readline()), parent


def end_of(end: str) -> int | None:
    with grandchild(end) as (pid, parent):
        ends = ProcessExit(pid)
        assert ends.code() is None
        ended = select.poll()  # not `select`, which takes no descriptor above 1,023
        ended.register(ends, select.POLLIN)
        assert not ended.poll(0)
        parent.communicate("go\n", timeout=LIMIT_S)
        assert ended.poll(LIMIT_S * 1000)
    try:
        return ends.code()
    finally:
        ends.close()


@pytest.mark.skipif(not TELLS, reason="Linux before 6.15 does not tell how a process ended that is no child")
@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("os._exit(7)", 7, "ended with exit code 7"),
        ("sys.exit(0)", 0, "ended with exit code 0"),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, "ended by SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", -signal.SIGSEGV, "ended by SIGSEGV"),
        ("os.abort()", -signal.SIGABRT, "ended by SIGABRT"),
    ],
)
def test_the_exit_code_or_signal_of_a_process_that_is_no_child_is_told(end: str, code: int, words: str) -> None:
    assert end_of(end) == code
    assert describe_exit(code) == words


def test_a_kernel_that_tells_nothing_is_believed() -> None:
    # What one before 6.15 answers: the call is not known for such a descriptor.
    read, write = os.pipe()
    os.close(write)
    ends = ProcessExit(os.getpid())
    os.dup2(read, ends.fileno())
    os.close(read)
    assert ends.code() is None
    ends.close()


def test_a_number_that_no_process_has_is_refused() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    with pytest.raises(ProcessLookupError):
        ProcessExit(child.pid)


def test_signals_without_a_name_are_told_by_number() -> None:
    assert describe_exit(-(signal.SIGRTMIN + 7)) == f"ended by signal {signal.SIGRTMIN + 7}"


@pytest.mark.parametrize(("text", "kills"), [("pgfault 1\noom_kill 4\n", 4), ("oom_kill_other 3\n", None), ("", None)])
def test_kills_for_lack_of_memory_are_read_from_the_kernels_counts(
    tmp_path: Path, text: str, kills: int | None
) -> None:
    (tmp_path / "vmstat").write_text(text)
    assert memory_kills(tmp_path / "vmstat") == kills


def test_no_counts_are_no_kills_and_not_none_of_them(tmp_path: Path) -> None:
    assert memory_kills(tmp_path / "vmstat") is None


GREEDY = "import sys; open(sys.argv[1], 'w').write('0'); memory = bytearray(200_000_000)"


@pytest.fixture
def small_room() -> Iterator[Path]:
    """Path of the file that takes whoever is to have 60 MB of memory and no more."""
    version_1 = (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes")
    for root, limit in (version_1, (Path("/sys/fs/cgroup"), "memory.max")):
        folder = root / f"streamrl-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / limit).write_text("60000000")
            yield folder / "cgroup.procs"
            return
        except FileNotFoundError:
            continue
        finally:
            folder.rmdir()
    pytest.skip("no control group of memory may be made here")


def test_a_process_that_passes_its_containers_limit_is_counted_among_those_that_lacked_memory(small_room: Path) -> None:
    before = memory_kills()
    greedy = subprocess.run([sys.executable, "-c", GREEDY, small_room], timeout=LIMIT_S, check=False)
    after = memory_kills()
    assert greedy.returncode == -signal.SIGKILL
    assert before is not None
    assert after is not None
    assert after == before + 1
