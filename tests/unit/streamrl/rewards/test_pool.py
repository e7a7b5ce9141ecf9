"""Rewards in child processes: whatever user code does, the others are scored and the pool is whole again."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from support.own_children import own_children

from streamrl.errors import ComponentError, ConfigError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.pool import RewardPool
from streamrl.types import ScoreStatus

TIMEOUT_S = 2.0  # where a time-out is what is tested; elsewhere none may come

REWARDS = """
import ctypes, os, re, signal, socket, subprocess, sys

def note(folder, pid):
    with open(os.path.join(folder, str(pid)), "w"):
        pass

def hang():
    while True:
        signal.pause()

def fork_and_hang(folder):
    pid = os.fork()
    if pid:
        note(folder, pid)
    hang()

def deaf(folder):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    hang()

def spin(folder):
    while True:
        pass

def fork_and_exit(folder):
    pid = os.fork()
    if not pid:
        hang()
    note(folder, pid)
    os._exit(3)

def start_and_exit(folder):
    note(folder, subprocess.Popen(["sleep", "1000"]).pid)
    os._exit(4)

def start(folder):
    note(folder, subprocess.Popen(["sleep", "1000"]).pid)
    return 1.0

def start_apart_and_hang(folder):
    note(folder, subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    hang()

def garbage(folder):
    for fd in range(3, 4096):
        try:
            os.write(fd, b"\\xff" * 64)
        except OSError:
            pass
    hang()

def eat(folder):
    chunks = []
    while True:
        chunks.append(bytearray(1 << 30))

def chatter(folder):
    print("to stdout " * 1000)
    os.write(1, b"raw " * 1000)
    sys.stdin.read()
    return 1.0

DEEDS = {
    "spin": spin,
    "c_loop": lambda folder: re.match("(a+)+$", "a" * 60 + "b"),
    "deaf": deaf,
    "stop": lambda folder: os.kill(os.getpid(), signal.SIGSTOP),
    "fork_and_hang": fork_and_hang,
    "garbage": garbage,
    "segfault": lambda folder: ctypes.string_at(0),
    "abort": lambda folder: os.abort(),
    "kill": lambda folder: os.kill(os.getpid(), signal.SIGKILL),
    "fork_and_exit": fork_and_exit,
    "start_and_exit": start_and_exit,
    "start": start,
    "start_apart_and_hang": start_apart_and_hang,
    "eat": eat,
    "sys_exit": lambda folder: sys.exit(5),
    "chatter": chatter,
}

def reward(completion, *, folder):
    deed = DEEDS.get(completion)
    return float(completion) if deed is None else deed(folder)

def modules(completion, **rest):
    return float(completion not in sys.modules)

def variables(completion, **rest):
    return float(completion in os.environ)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds the module of rewards, and a file for each process that user code started."""
    (tmp_path / "own_rewards.py").write_text(REWARDS)
    (tmp_path / "dies_early.py").write_text("import os\nos._exit(9)\n")
    (tmp_path / "started").mkdir()
    return tmp_path


@asynccontextmanager
async def open_pool(
    folder: Path,
    *,
    function: str = "own_rewards:reward",
    workers: int = 1,
    batch_size: int = 64,
    timeout_s: float = 60.0,
) -> AsyncIterator[RewardPool]:
    pool = RewardPool(
        function,
        workers=workers,
        batch_size=batch_size,
        timeout_s=timeout_s,
        memory_bytes=2**28,
        import_paths=[str(folder)],
    )
    async with pool:
        yield pool
    assert pool.pids == []
    assert own_children() == []


def items(folder: Path, *completions: str) -> list[RewardItem]:
    payload = f'{{"folder":"{folder / "started"}"}}'
    return [RewardItem(completion, "prompt", payload) for completion in completions]


def assert_whole(pool: RewardPool, *, workers: int) -> None:
    """All places are filled with living children, and those are all that there is below this process."""
    assert len(pool.pids) == workers
    children = own_children()
    assert sorted(child.pid for child in children) == sorted(pool.pids)
    assert psutil.STATUS_ZOMBIE not in {child.status() for child in children}


def wait_for_start(folder: Path) -> None:
    """Return when user code has started a process."""
    while not list((folder / "started").iterdir()):
        os.sched_yield()


def assert_started_are_gone(folder: Path, *, count: int) -> None:
    started = [int(path.name) for path in (folder / "started").iterdir()]
    assert len(started) >= count
    for pid in started:
        if psutil.pid_exists(pid):
            psutil.Process(pid).wait(timeout=10)


async def test_rewards_that_hang_are_killed_and_fail_alone(folder: Path) -> None:
    bad = ["spin", "c_loop", "deaf", "stop", "fork_and_hang", "start_apart_and_hang"]
    async with open_pool(folder, workers=3, timeout_s=TIMEOUT_S) as pool:
        scores = await pool.score(items(folder, "1", *bad, "2"))
        assert [scores[0].reward, scores[-1].reward] == [1.0, 2.0]
        for name, score in zip(bad, scores[1:-1], strict=True):
            assert score.status is ScoreStatus.FAILED, name
            assert score.reason == "timeout: no answer in 2 s", name
        assert_whole(pool, workers=3)
        assert pool.lost >= len(bad)
        assert [score.reward for score in await pool.score(items(folder, "3", "4"))] == [3.0, 4.0]
    assert_started_are_gone(folder, count=2)


async def test_rewards_that_kill_their_process_fail_alone_and_say_how_it_ended(folder: Path) -> None:
    bad = {
        "segfault": "child died: signal 11 (SIGSEGV)",
        "abort": "child died: signal 6 (SIGABRT)",
        "kill": "child died: signal 9 (SIGKILL)",
        "fork_and_exit": "child exited with code 3",
        "start_and_exit": "child exited with code 4",
        "garbage": "child sent a malformed answer: a message announces 4294967295 bytes",
    }
    async with open_pool(folder, workers=2) as pool:
        scores = await pool.score(items(folder, "1", *bad, "2"))
        assert [scores[0].reward, scores[-1].reward] == [1.0, 2.0]
        for (name, reason), score in zip(bad.items(), scores[1:-1], strict=True):
            assert score.status is ScoreStatus.FAILED, name
            assert score.reason.startswith(reason), name
        assert_whole(pool, workers=2)
        assert [score.reward for score in await pool.score(items(folder, "3"))] == [3.0]
    assert_started_are_gone(folder, count=2)


async def test_a_child_that_is_killed_between_two_questions_takes_its_programs_with_it(folder: Path) -> None:
    async with open_pool(folder) as pool:
        assert [score.reward for score in await pool.score(items(folder, "start"))] == [1.0]
        os.kill(pool.pids[0], signal.SIGKILL)
        await asyncio.to_thread(assert_started_are_gone, folder, count=1)
        assert [score.reward for score in await pool.score(items(folder, "3"))] == [3.0]
        assert_whole(pool, workers=1)


async def test_printing_exiting_and_eating_memory_cost_no_process(folder: Path) -> None:
    async with open_pool(folder) as pool:
        before = pool.pids
        scores = await pool.score(items(folder, "1", "chatter", "sys_exit", "eat", "2"))
        assert [score.reward for score in scores] == [1.0, 1.0, None, None, 2.0]
        assert scores[2].reason == "SystemExit: 5"
        assert scores[3].reason.startswith("MemoryError")
        assert (pool.pids, pool.lost) == (before, 0)


async def test_scores_come_in_the_order_of_the_items_however_they_were_spread(folder: Path) -> None:
    numbers = [str(number) for number in range(500)]
    async with open_pool(folder, workers=2, batch_size=7) as pool:
        calls = [pool.score(items(folder, *numbers)) for _ in range(3)]
        for scores in await asyncio.gather(*calls):
            assert [score.reward for score in scores] == [float(number) for number in numbers]
        assert await pool.score([]) == []


async def test_a_cancelled_call_leaves_no_answer_for_the_next_one(folder: Path) -> None:
    async with open_pool(folder) as pool:
        call = asyncio.ensure_future(pool.score(items(folder, "fork_and_hang")))
        await asyncio.to_thread(wait_for_start, folder)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [score.reward for score in await pool.score(items(folder, "7"))] == [7.0]
        assert_whole(pool, workers=1)
    assert_started_are_gone(folder, count=1)


async def test_closing_ends_a_call_that_hangs(folder: Path) -> None:
    async with open_pool(folder) as pool:
        call = asyncio.ensure_future(pool.score(items(folder, "fork_and_hang")))
        await asyncio.to_thread(wait_for_start, folder)
        await pool.close()
        with pytest.raises(ComponentError, match="closed"):
            await call
        with pytest.raises(ComponentError, match="closed"):
            await pool.score(items(folder, "1"))
    assert_started_are_gone(folder, count=1)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        ("own_rewards:rewart", ConfigError, "did you mean 'reward'"),
        ("nowhere:reward", ConfigError, "ModuleNotFoundError"),
        ("dies_early:reward", ComponentError, "did not start: child exited with code 9"),
    ],
)
async def test_a_function_that_cannot_be_had_ends_the_start_and_leaves_no_process(
    folder: Path, function: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        async with open_pool(folder, function=function, workers=2):
            pass
    assert own_children() == []


async def test_a_child_has_no_heavy_library_and_no_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "secret")
    heavy = ["torch", "ray", "pyarrow", "transformers"]
    async with open_pool(folder, function="own_rewards:modules") as pool:
        assert [score.reward for score in await pool.score(items(folder, *heavy))] == [1.0] * 4
    async with open_pool(folder, function="own_rewards:variables") as pool:
        scores = await pool.score(items(folder, "SOME_SERVICE_TOKEN", "PATH"))
        assert [score.reward for score in scores] == [0.0, 1.0]


async def test_a_file_in_the_current_folder_stands_in_for_no_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "msgspec.py").write_text("raise SystemExit('the wrong module')\n")
    monkeypatch.chdir(folder)
    async with open_pool(folder) as pool:
        assert [score.reward for score in await pool.score(items(folder, "1"))] == [1.0]


PARENT = """
import asyncio, sys
from streamrl.rewards.base import RewardItem
from streamrl.rewards.pool import RewardPool

async def main(folder):
    pool = RewardPool("own_rewards:reward", timeout_s=1000, import_paths=[folder])
    await pool.start()
    print(pool.pids[0], flush=True)
    await pool.score([RewardItem("fork_and_hang", "", '{"folder":"%s/started"}' % folder)])

asyncio.run(main(sys.argv[1]))
"""


def test_children_and_what_they_forked_die_with_a_killed_parent(folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        wait_for_start(folder)
        parent.send_signal(signal.SIGKILL)
        assert parent.wait() == -signal.SIGKILL
    child.wait(timeout=10)
    assert_started_are_gone(folder, count=1)
