"""Process 1 of a container, in a process that was made the parent of orphans as the kernel makes process 1."""

import os
import signal
import subprocess
import sys
import textwrap
from contextlib import ExitStack

import pytest

HEAD = """
import ctypes, os, signal, subprocess, sys, time
from streamrl.services.cli.first_process import go_on_in_child
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans come to this process
go_on_in_child()
init = os.getppid()
"""
"""In the place of being process 1."""


def started(program: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), signal.SIGKILL)", 137)])
def test_it_ends_with_the_exit_code_of_the_program(ending: str, code: int) -> None:
    with started(ending) as init:
        assert init.wait(timeout=60) == code


def test_orphans_are_reaped() -> None:
    program = """
    reader, writer = os.pipe()
    quiet = "stdout=subprocess.DEVNULL"
    between = f"import subprocess; print(subprocess.Popen(['cat'], {quiet}).pid, flush=True)"
    told = subprocess.run([sys.executable, "-S", "-c", between], stdin=reader, stdout=subprocess.PIPE, check=True)
    orphan = int(told.stdout)
    parent = int(open(f"/proc/{orphan}/stat").read().rpartition(")")[2].split()[1])
    print(parent == init, flush=True)
    os.kill(orphan, signal.SIGKILL)
    while os.path.exists(f"/proc/{orphan}"):  # a process that is dead and not reaped is there
        os.sched_yield()
    print("reaped", flush=True)
    """
    with started(program) as init:
        assert init.communicate(timeout=60)[0].split() == ["True", "reaped"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_reaches_the_program(number: signal.Signals) -> None:
    program = f"""
    signal.signal({int(number)}, lambda *_: sys.exit(5))
    print("ready", flush=True)
    while True:
        signal.pause()
    """
    with started(program) as init, ExitStack() as ending:
        ending.callback(os.killpg, init.pid, signal.SIGKILL)
        assert init.stdout is not None
        assert init.stdout.readline() == "ready\n"
        init.send_signal(number)
        assert init.wait(timeout=60) == 5
        ending.pop_all()


def test_in_any_other_process_nothing_happens() -> None:
    program = (
        "import os\nfrom streamrl.services.cli.first_process import be_init_as_process_1\n"
        "before = os.getpid()\nbe_init_as_process_1()\nprint(os.getpid() == before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True\n"
