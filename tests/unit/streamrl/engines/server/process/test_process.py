"""A server's process: started, heard, ended with all that it started, whoever dies first."""

import asyncio
import logging
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from streamrl.engines.server.loop import BackgroundLoop
from streamrl.engines.server.process.process import ServerCommand, ServerProcess, error_in
from streamrl.errors import ConfigError, DeadlineError, ProcessDiedError

LIMIT_S = 30.0

# Starts a child in a session of its own, tells both numbers, then sleeps; told to, it does not mind SIGTERM.
FAMILY = """
import os, pathlib, signal, subprocess, sys, time
stubborn = len(sys.argv) > 2
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
print("the family is there", flush=True)
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""
OWNER = """
import sys, time
from pathlib import Path
from streamrl.engines.server.process.process import ServerCommand, ServerProcess
argv = [sys.executable, "-S", "-c", sys.argv[1], sys.argv[2]]
process = ServerProcess("server", ServerCommand(argv, {}), [Path(sys.argv[3])], grace_s=5.0)
time.sleep(600)
"""


def family(numbers: Path, *args: str) -> ServerCommand:
    return ServerCommand([sys.executable, "-S", "-c", FAMILY, str(numbers), *args], {})


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """A pipe: whoever reads it waits for the family to be there."""
    os.mkfifo(tmp_path / "numbers")
    return tmp_path / "numbers"


def told(numbers: Path) -> list[int]:
    return [int(number) for number in numbers.read_text().split()]


def gone(pid: int) -> bool:
    """Whether it ends within the limit."""
    try:
        ends = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended = select.poll()  # not `select`, which takes no descriptor above 1,023
    ended.register(ends, select.POLLIN)
    ready = ended.poll(LIMIT_S * 1000)
    os.close(ends)
    return bool(ready)


@pytest.mark.parametrize("stubborn", [[], ["stubborn"]])
def test_stop_ends_the_server_and_what_left_its_session(stubborn: list[str], numbers: Path, tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    process = ServerProcess("server", family(numbers, *stubborn), [folder], grace_s=0.2)
    pids = told(numbers)
    process.stop()
    process.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in [*pids, process.session])
    assert not folder.exists()


def test_a_server_does_not_outlive_an_owner_that_is_killed(numbers: Path, tmp_path: Path) -> None:
    folder = tmp_path / "private"
    folder.mkdir()
    program = [sys.executable, "-c", OWNER, FAMILY, str(numbers), str(folder)]
    with subprocess.Popen(program, start_new_session=True) as owner:
        pids = told(numbers)
        owner.kill()
    assert all(gone(pid) for pid in pids)


def test_a_server_does_not_outlive_its_keeper(numbers: Path) -> None:
    process = ServerProcess("server", family(numbers), [], grace_s=0.2)
    server, child = told(numbers)
    os.kill(process.session, signal.SIGKILL)
    assert gone(server)
    assert "signal SIGKILL" in process.story()
    os.kill(child, signal.SIGKILL)  # its own session, and nobody left above it that knows it
    process.stop()


def test_the_end_of_a_server_is_told_with_how_it_ended_and_its_last_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    program = "import os, sys; print('loading'); print('no such model', file=sys.stderr, flush=True); os._exit(7)"
    process = ServerProcess("vllm", ServerCommand([sys.executable, "-S", "-u", "-c", program], {}), [])
    loop = BackgroundLoop("test")
    with pytest.raises(ProcessDiedError):
        loop.run(process.ended(), LIMIT_S, "its end")
    assert process.story() == "its process ended with exit code 7; its last lines:\n  loading\n  no such model"
    assert ("vllm", logging.INFO, "no such model") in caplog.record_tuples
    process.stop()
    loop.close()


SEVERAL_PROCESSES = """
print("(Worker) WARNING [a.py:1] limits cause errors like `OSError: [Errno 24] Too many open files`")
print("(Worker) ERROR [b.py:2] RuntimeError: this kernel is for GPUs")
for number in range(50):
    print("  File", number)
print("RuntimeError: initialization failed, see root cause above")
raise SystemExit(1)
"""


def test_of_a_server_of_many_processes_the_first_error_is_told_and_not_only_the_last(tmp_path: Path) -> None:
    process = ServerProcess("server", ServerCommand([sys.executable, "-S", "-c", SEVERAL_PROCESSES], {}), [tmp_path])
    try:
        story = process.story()
    finally:
        process.stop()
    assert story.startswith(
        "its process ended with exit code 1; its first error: RuntimeError: this kernel is for GPUs; its last lines:\n"
    )
    assert "WARNING" not in story


@pytest.mark.parametrize(
    "line",
    ["FutureWarning: no Error: here", "INFO ValueError: caught, goes on", "all is well", "Error without a class"],
)
def test_a_line_that_only_warns_names_no_error(line: str) -> None:
    assert error_in(line) == ""


def test_a_server_that_is_killed_is_told_by_the_signal(numbers: Path) -> None:
    process = ServerProcess("server", family(numbers), [])
    server, child = told(numbers)
    os.kill(server, signal.SIGKILL)
    assert gone(child)
    assert process.story().startswith("its process ended with signal SIGKILL; its last lines:\n  the family is there")
    process.stop()


def test_a_server_inherits_nothing_of_ours_but_the_rest_and_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "RAY_AUTH_TOKEN", "STREAMRL_IMPORT_PATH", "VIRTUAL_ENV", "OTHER"):
        monkeypatch.setenv(name, "theirs")
    names = "PYTHONPATH RAY_AUTH_TOKEN STREAMRL_IMPORT_PATH VIRTUAL_ENV OTHER TOLD"
    program = f"import os; print([os.environ.get(name) for name in {names.split()}])"
    command = ServerCommand([sys.executable, "-S", "-c", program], {"TOLD": "ours", "PYTHONPATH": "inside"})
    process = ServerProcess("server", command, [])
    assert "['inside', None, None, None, 'theirs', 'ours']" in process.story()
    process.stop()


def test_a_program_that_is_not_there_is_told_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"vllm: no program /nowhere/python; `make engines`"):
        ServerProcess("vllm", ServerCommand(["/nowhere/python"], {}), [])


def test_a_wait_in_the_background_has_a_deadline_and_is_cancelled_by_it() -> None:
    cancelled = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    loop = BackgroundLoop("vllm")
    with pytest.raises(DeadlineError, match=r"^vllm: its start took longer than 0\.05 s"):
        loop.run(wait(), 0.05, "its start")
    loop.cancel_all(LIMIT_S)
    loop.close()
    loop.close()
    assert cancelled == [True]


SHARING = """
import os, pathlib, sys
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=4096)
print("shared", flush=True)
pathlib.Path(sys.argv[1]).write_text(memory.name)
os.kill(os.getpid(), 9)
"""


def test_shared_memory_of_a_server_that_is_killed_is_removed_by_its_tracker(numbers: Path) -> None:
    command = ServerCommand([sys.executable, "-c", SHARING, str(numbers)], {})
    process = ServerProcess("server", command, [], grace_s=LIMIT_S)  # which a tracker may need on a busy machine
    name = numbers.read_text()
    assert "signal SIGKILL" in process.story()
    process.stop()
    assert not Path("/dev/shm", name).exists()
