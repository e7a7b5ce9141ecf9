"""The death of Ray's own processes is heard at once, and what they leave behind ends."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator

import pytest

from streamrl.errors import ProcessDiedError
from streamrl.services.launch.ray_processes import unless_ray_dies

LIMIT_S = 60
WAITS = "import sys; sys.stdin.read()"

# A subreaper, as the watcher is; below it an owner; below that a process that dies and leaves an orphan.
WATCHER = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2], str(os.getpid())], check=True)
"""
OWNER = """
import os, subprocess, sys, psutil
from streamrl.services.launch.ray_processes import end_orphans
quiet = "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
sleeper = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], {quiet})"
leave = f"import subprocess, sys; print({sleeper}.pid)"
orphan = psutil.Process(int(subprocess.run([sys.executable, "-c", leave], capture_output=True, check=True).stdout))
assert orphan.ppid() == os.getppid()
end_orphans(os.getppid() if sys.argv[1] == "ours" else os.getppid() + 1)
print("runs" if orphan.is_running() and orphan.status() != psutil.STATUS_ZOMBIE else "ended")
orphan.kill()
"""


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE) as one:
        yield one
        one.kill()


async def test_a_death_ends_the_wait_and_is_named(process: subprocess.Popen[bytes]) -> None:
    work = asyncio.ensure_future(asyncio.Event().wait())
    guarded = asyncio.create_task(unless_ray_dies(work, {process.pid: "raylet"}))
    await asyncio.sleep(0)
    process.kill()
    with pytest.raises(ProcessDiedError, match="Ray's raylet died"):
        await asyncio.wait_for(guarded, LIMIT_S)
    assert not work.done()
    work.cancel()


async def test_one_that_is_gone_already_is_a_death_too(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    work = asyncio.ensure_future(asyncio.Event().wait())
    with pytest.raises(ProcessDiedError, match="gcs_server"):
        await asyncio.wait_for(unless_ray_dies(work, {process.pid: "gcs_server"}), LIMIT_S)
    work.cancel()


@pytest.mark.parametrize("watched", [True, False])
async def test_work_that_ends_first_is_what_comes_of_it(watched: bool, process: subprocess.Popen[bytes]) -> None:
    work: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    guarded = asyncio.create_task(unless_ray_dies(work, {process.pid: "raylet"} if watched else {}))
    await asyncio.sleep(0)
    work.set_result(7)
    assert await asyncio.wait_for(guarded, LIMIT_S) == 7
    assert process.poll() is None


@pytest.mark.parametrize(("parent", "then"), [("ours", "ended"), ("another", "runs")])
def test_orphans_of_our_own_watcher_end_and_those_of_nobody_else(parent: str, then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHER, OWNER, parent], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [then]
