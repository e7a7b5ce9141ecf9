"""The death of a part is told once: by what it ended, what it was doing, what that costs, and where its last words are.

Of each part that another one can take the place of, and of those whose death has the system start again.
"""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.repository import TESTS
from support.runs.live_run import LiveRun, live_run

from streamrl.services.run.folder import RunFolder

pytestmark = pytest.mark.ray

SCRIPTED = (
    *("--rollout.engine", "scripted", "--eval.every", "1000000", "--checkpoint.every", "3"),
    *("--learner.steps", "1000000"),
)
# One replica, so that it is the one that serves; the learner is asked what it does each two seconds.
ONE = ("--rollout.replicas", "1", "--deadlines.stall_s", "20")
TELLS = tuple(int(part) for part in platform.release().split(".")[:2]) >= (6, 15)
"""Whether this kernel tells how a process ended."""

REPLACED = (
    (
        "RolloutReplica",
        signal.SIGSEGV,
        "rollout-",
        "ended by SIGSEGV: Fatal Python error: Segmentation fault",
        "issued",
    ),
    ("RewardActor", signal.SIGKILL, "reward", "ended by SIGKILL, not for lack of memory", "scored"),
    # Of a learner that is aborted the kernel was seen to tell either: what handles the signal may fault itself.
    ("LearnerRank", signal.SIGABRT, "learner-0", "ended by SIG(ABRT|SEGV): Fatal Python error: Aborted", "trained"),
)
STARTED_AGAIN = {"QueueActor": "queue", "WeightStoreActor": "weights", "Controller": "controller"}


def newest_step(run: LiveRun) -> int:
    return max((step["step"] for step in run.steps()), default=0)


def kill_and_wait(run: LiveRun, actor: str, number: int) -> None:
    """Until its death is told, and a step is trained after it."""
    run.actors(actor)[0].send_signal(number)
    assert run.read_until(lambda event: "its process died" in event.get("text", "")), (run.events[-3:], run.end())
    assert run.read_until(lambda event: event["kind"] == "step"), (run.events[-3:], run.end())


def end(run: LiveRun) -> None:
    run.process.send_signal(signal.SIGINT)
    code, err = run.end()
    assert code == 130, err


def told_of(run: LiveRun, beginning: str) -> str:
    """The one notice of a death of a part."""
    (text,) = (text for text in run.notices() if re.match(f"{beginning}[0-9]*: its process died, ", text))
    return text


def report_in(text: str) -> str:
    found = re.search(r"its last words are in (\S+\.txt)", text)
    assert found, text
    return Path(found[1]).read_text()


@pytest.mark.long
@pytest.mark.skipif(not TELLS, reason="Linux before 6.15 does not tell how a process ended that is no child")
def test_how_each_part_died_doing_what_and_at_what_cost_is_told_once_and_written_down(
    user_folder: Path, streamrl_path: Path
) -> None:
    with live_run(user_folder, streamrl_path, "told", *SCRIPTED, *ONE) as run:
        made = {}
        for actor, number, part, *_ in REPLACED:
            run.until_step(newest_step(run) + 5)
            # Since its successor serves, all parts have said what they do.
            assert run.read_until(lambda event: event["kind"] == "replicas" and bool(event["replicas"]))
            made[part] = newest_step(run)
            kill_and_wait(run, actor, number)
        end(run)
    for _, _, part, how, cost in REPLACED:
        text = told_of(run, part)
        assert re.search(f"its process died, {how}", text), text
        assert re.search(rf"; {cost} again: \d+ ", text), text
        assert text.endswith("restart 1 of 3")
        report = report_in(text)
        # The others have nothing to say while all goes well.
        assert part != "rollout-" or re.search(r"==== its last \d+ log lines\n20", report), report
        assert ("thread 0x" in report) == (how.find("Fatal") > 0), report
    assert re.search(
        r"; it ran \d+ completions under version 0\.\d+, \d+ waited \(\d+ s before\)", told_of(run, "rollout-")
    )
    assert re.search(r"; \d of its \d workers were busy \(\d+ s before\)", told_of(run, "reward"))
    learner = re.search(r"; it (?:was at|had made) step (\d+)(?:, \w+)? \(\d+ s before\)", told_of(run, "learner-"))
    assert learner, told_of(run, "learner-")
    assert int(learner[1]) >= made["learner-0"], "an older step is told than the run had shown"


@pytest.mark.long
@pytest.mark.skipif(not TELLS, reason="Linux before 6.15 does not tell how a process ended that is no child")
def test_a_death_that_others_fail_by_is_told_by_the_name_of_who_died(user_folder: Path, streamrl_path: Path) -> None:
    with live_run(user_folder, streamrl_path, "told-others", *SCRIPTED) as run:
        for actor in STARTED_AGAIN:
            run.until_step(newest_step(run) + 5)
            kill_and_wait(run, actor, signal.SIGKILL)
        end(run)
    for part in STARTED_AGAIN.values():
        text = told_of(run, part)
        how = "ended by SIGKILL, not for lack of memory; its last words are in "
        assert text.startswith(f"{part}: its process died, {how}")
        assert text.endswith("the system starts again from what is on disk, 1 of 3")
        assert f"==== {part}, pid " in report_in(text)


def test_a_process_that_ray_ended_for_lack_of_memory_is_one_that_died_and_may_start_again(tmp_path: Path) -> None:
    folder, runtime = tmp_path / "run", Path(f"/tmp/srl-test-{os.getpid()}")
    folder.mkdir()
    RunFolder.create(folder, "run")
    program = TESTS / "crowded_actor.py"
    try:
        done = subprocess.run(
            [sys.executable, "-P", program, folder, runtime], capture_output=True, text=True, timeout=120, check=False
        )
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["died"]
    assert told["told"].startswith("rollout-0: its process died: ")
    assert "memory" in told["told"]
    assert len(told["told"]) < 500
