"""The stacks of processes that are stuck in C are had by both ways, and nobody is hurt by being asked."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from streamrl.rewards.base import RewardItem
from streamrl.rewards.pool import RewardPool
from streamrl.services.actors.stack_dump import dump, find_py_spy
from streamrl.system.stacks import SHOW

STUCK = """
import ctypes, sys, threading, time
from pathlib import Path
from streamrl.system.stacks import answer

def in_the_users_code(how):
    print("stuck", flush=True)
    if how == "sleeps":
        time.sleep(1000)
    elif how == "waits for a lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif how == "keeps the interpreter's lock":
        ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
    else:
        sys.stdin.read()

answer("part", Path(sys.argv[1]))
in_the_users_code(sys.argv[2])
print("goes on", flush=True)
"""
DEAF = """
import sys
kept = open(sys.argv[1] + "/deaf." + str(__import__("os").getpid()), "w")
print("stuck", flush=True)
sys.stdin.read()
"""
HOW = ("sleeps", "waits for a lock", "keeps the interpreter's lock")


@contextmanager
def stuck(folder: Path, how: str = "reads", program: str = STUCK) -> Iterator[subprocess.Popen[str]]:
    """A process that has got where it is stuck."""
    command = [sys.executable, "-c", program, str(folder), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "stuck\n"
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def py_spy() -> Path:
    found = find_py_spy()
    if found is None:
        pytest.skip("py-spy is not installed: pip install py-spy")
    return found


@pytest.mark.parametrize("how", HOW)
def test_a_process_that_is_stuck_in_c_shows_its_stack_by_itself(how: str, tmp_path: Path) -> None:
    with stuck(tmp_path, how) as process:
        text, count = dump(tmp_path, None)
        assert process.poll() is None
    assert count == 1
    assert f"==== part, pid {process.pid}\nby itself" in text
    assert "in in_the_users_code" in text


def test_a_process_that_is_stuck_in_c_is_shown_by_py_spy(py_spy: Path, tmp_path: Path) -> None:
    with stuck(tmp_path, "sleeps") as process:
        text, _ = dump(tmp_path, py_spy)
        if "ermission" in text:
            pytest.skip("py-spy may not look at a process here")
        assert process.poll() is None
    assert f"==== part, pid {process.pid}\nby py-spy" in text
    assert "in_the_users_code" in text


def test_what_py_spy_may_not_show_the_process_shows_itself(tmp_path: Path) -> None:
    refused = tmp_path / "refused"
    refused.write_text("#!/bin/sh\necho 'Permission denied: ptrace' >&2\nexit 1\n")
    refused.chmod(0o700)
    with stuck(tmp_path / "answers", "sleeps"):
        text, _ = dump(tmp_path / "answers", refused)
    assert "by itself" in text
    assert "in in_the_users_code" in text


def test_a_process_goes_on_where_it_was_however_often_it_is_asked(tmp_path: Path) -> None:
    with stuck(tmp_path) as process:
        first, second = dump(tmp_path, None)[0], dump(tmp_path, None)[0]
        assert first.count("in in_the_users_code") == second.count("in in_the_users_code") == 1
        assert "\0" not in second
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        assert process.stdout.readline() == "goes on\n"
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]


def test_nobody_is_sent_the_signal_who_does_not_catch_it_or_only_has_the_number_of_who_did(tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    answers.mkdir()
    with stuck(answers, program=DEAF) as deaf, stuck(tmp_path / "elsewhere", program=STUCK) as other:
        (answers / f"gone.{other.pid}").touch()
        signal.signal(SHOW, signal.SIG_DFL)
        (answers / f"gone.{os.getpid()}").touch()
        text, count = dump(answers, None)
        assert count == 1
        assert f"==== deaf, pid {deaf.pid}\nno stacks: it does not catch the signal" in text
        assert deaf.poll() is None
    assert [path.name for path in answers.iterdir()] == [f"deaf.{deaf.pid}"]
    assert dump(answers, None) == ("", 0)
    assert list(answers.iterdir()) == []


def test_what_a_process_started_is_shown_below_it_but_what_the_owner_started_is_not(tmp_path: Path) -> None:
    starts = STUCK.replace(
        'answer("part"', 'import subprocess; below = subprocess.Popen(["sleep", "1000"])\nanswer("part"'
    )
    owner = starts.replace('answer("part"', 'answer("owner"')
    with ExitStack() as stack:
        for program in (starts, owner):
            process = stack.enter_context(stuck(tmp_path, program=program))
            for child in psutil.Process(process.pid).children():
                stack.callback(child.kill)
        text, count = dump(tmp_path, None)
    assert count == 3
    assert "==== part > sleep 1000, pid" in text
    assert text.count("no stacks: it does not answer by itself, and py-spy is not installed") == 1


async def test_a_reward_child_shows_where_the_users_function_is(tmp_path: Path) -> None:
    gate, answers = tmp_path / "gate", tmp_path / "answers"
    os.mkfifo(gate)
    lines = ("def slow_in_here(completion, **_):", f"    return float(open({str(gate)!r}).read())")
    (tmp_path / "stuck_rewards.py").write_text("\n".join(lines))
    pool = RewardPool("stuck_rewards:slow_in_here", import_paths=[str(tmp_path)], stacks=str(answers), timeout_s=100)
    async with pool:
        assert (pool.busy, pool.oldest_s, pool.answered) == (0, 0.0, 0)
        scoring = asyncio.ensure_future(pool.score([RewardItem("1")]))
        # A pipe opens for writing when the function has it open for reading.
        opening = asyncio.ensure_future(asyncio.to_thread(gate.open, "w"))
        try:
            await asyncio.wait({opening, scoring}, return_when=asyncio.FIRST_COMPLETED)
            assert not scoring.done(), scoring.result()
            assert (pool.busy, pool.oldest_s > 0) == (1, True)
            text, _ = await asyncio.to_thread(dump, answers, None)
        finally:
            os.close(os.open(gate, os.O_RDWR))  # who waits for a reader waits no longer
            with await opening as opened:
                opened.write("3")
        assert [score.reward for score in await scoring] == [3.0]
        assert (pool.busy, pool.oldest_s, pool.answered) == (0, 0.0, 1)
    assert "==== reward-child, pid" in text
    assert "in slow_in_here" in text
