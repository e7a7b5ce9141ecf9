"""A tracker that hangs, raises, ends its process or floods memory is dropped, is told once, and holds nobody."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from support.own_children import own_children
from support.repository import TESTS
from support.trackers.recorded import tracked
from support.trackers.stand_in import calls, stand_in

from streamrl.observability.trackers.base import Ending
from streamrl.observability.trackers.hub import TrackerHub
from streamrl.observability.trackers.names import NamedFigures
from streamrl.observability.trackers.tracker_process import TrackerProcess

LONG_S = 60.0
FINISHED = Ending(state="finished", summary={"steps": 3})

Make = Callable[..., TrackerHub]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """`make(way)`: a hub with a tracker that behaves so; with `names`, of several trackers."""
    with ExitStack() as stack:

        def hub(
            way: str, names: tuple[str, ...] = ("wandb",), answer_s: float = LONG_S, **changes: float
        ) -> TrackerHub:
            monkeypatch.setenv("PYTHONPATH", f"{stand_in(tmp_path / 'stand-in', way)}:{os.environ['PYTHONPATH']}")
            limits = {"start_s": LONG_S, "answer_s": answer_s, **changes}
            made = TrackerHub(
                [TrackerProcess(name, tracked(tmp_path), **limits) for name in names], NamedFigures("none")
            )
            stack.callback(made.close)
            return made

        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, _path())))
        yield hub


def _path() -> list[Path]:
    import streamrl

    return [Path(streamrl.__file__).parents[1]]


def told(hub: TrackerHub, steps: int = 3) -> list[str]:
    """Tell so many steps and the end; what the hub has to say then."""
    for step in range(1, steps + 1):
        hub.write({"step": step, "reward/mean": 0.5, "version": "0.1"})
    hub.finish(FINISHED)
    hub.close(LONG_S)
    return hub.take_news()


def test_a_tracker_gets_each_step_and_the_end_in_order(make: Make, tmp_path: Path) -> None:
    hub = make("well")
    assert told(hub) == []
    assert calls(tmp_path / "stand-in") == ["init 0123456789ab allow", "log 1", "log 2", "log 3", "finish 0"]
    assert hub.status() == {"wandb": {"state": "finished", "where": "http://stand-in", "taken": 4}}


def test_a_tracker_that_hangs_is_dropped_once_and_another_goes_on(make: Make, tmp_path: Path) -> None:
    hub = make("hang", ("wandb", "tensorboard"), answer_s=2.0)
    assert told(hub) == ["tracker wandb is dropped: it gave no answer within 2 s; the run goes on without it"]
    assert calls(tmp_path / "stand-in") == ["init 0123456789ab allow", "log 1"]
    states = {name: status["state"] for name, status in hub.status().items()}
    assert states == {"wandb": "dropped", "tensorboard": "finished"}
    assert hub.status()["tensorboard"]["taken"] == 4


def test_what_a_tracker_that_hangs_had_started_ends_with_it(make: Make, tmp_path: Path) -> None:
    told(make("hang with a program", answer_s=2.0))
    program = int((tmp_path / "stand-in" / "program").read_text())
    # It was killed; on a busy machine that takes effect a little later.
    with suppress(psutil.NoSuchProcess):
        ended, _ = psutil.wait_procs([psutil.Process(program)], 60)
        assert ended or psutil.Process(program).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("exit", "its process exited with code 9"),
        ("flood", "its process exited with code 77"),
        ("no start", "it did not start: ValueError: the key is wrong"),
    ],
)
def test_a_tracker_that_ends_its_process_is_dropped_with_the_reason(make: Make, way: str, reason: str) -> None:
    hub = make(way)
    assert told(hub) == [f"tracker wandb is dropped: {reason}; the run goes on without it"]
    assert hub.status()["wandb"]["reason"] == reason


def test_a_tracker_that_does_not_come_up_in_time_is_dropped(make: Make) -> None:
    hub = make("hang at the start", start_s=3.0)
    assert told(hub) == ["tracker wandb is dropped: it did not start within 3 s; the run goes on without it"]


def test_one_error_of_a_package_is_told_and_the_tracker_goes_on(make: Make, tmp_path: Path) -> None:
    hub = make("raise once")
    what = "could not take what it was told, and is told on: SystemExit: one time"
    assert told(hub) == [f"tracker wandb {what}"]
    assert calls(tmp_path / "stand-in")[-2:] == ["log 3", "finish 0"]
    status = hub.status()["wandb"]
    assert (status["state"], status["taken"], status["failed"]) == ("finished", 3, 1)


def test_a_package_that_always_raises_is_dropped_after_ten_errors(make: Make, tmp_path: Path) -> None:
    hub = make("raise")
    first, last = told(hub, steps=15)
    assert first.endswith("RuntimeError: no step 1")
    assert "it failed 10 times in a row, the last time with RuntimeError: no step 10;" in last
    assert calls(tmp_path / "stand-in")[-1] == "log 10"


def test_closing_waits_no_longer_than_it_was_told(make: Make) -> None:
    hub = make("hang at the end", answer_s=2 * LONG_S)
    hub.write({"step": 1, "reward/mean": 0.5})
    hub.finish(FINISHED)
    hub.close(4.0)
    assert hub.take_news() == ["tracker wandb is dropped: it did not finish within 4 s; the run goes on without it"]


def test_a_tracker_that_is_closed_while_it_starts_is_ended(make: Make) -> None:
    hub = make("hang at the start", start_s=LONG_S)
    hub.close()
    assert hub.status()["wandb"]["state"] == "dropped"
    assert own_children() == []


def test_of_a_slow_tracker_the_oldest_lines_are_left_out_and_the_end_is_kept(make: Make, tmp_path: Path) -> None:
    hub = make("hang at the start", start_s=LONG_S, most_waiting=5)
    for step in range(1, 21):
        hub.write({"step": step, "reward/mean": 0.5})
    hub.finish(FINISHED)
    (news,) = hub.take_news()
    assert news == "tracker wandb is slow: more than 5 lines wait for it; the oldest are left out"
    assert hub.status()["wandb"]["left_out"] == 16


def test_steps_that_come_again_after_a_resume_are_not_told_twice(make: Make, tmp_path: Path) -> None:
    hub = make("well")
    hub.write({"step": 5, "reward/mean": 0.5})
    hub.truncate_after(3)
    for step in range(4, 8):
        hub.write({"step": step, "reward/mean": 0.5})
    hub.close(LONG_S)
    assert [call for call in calls(tmp_path / "stand-in") if "log" in call] == ["log 5", "log 6", "log 7"]


def test_a_step_that_the_tracker_says_it_has_is_not_told(make: Make, tmp_path: Path) -> None:
    stand_in(tmp_path / "stand-in", "well")
    (tmp_path / "stand-in" / "starts").write_text("3")
    told(make("well"), steps=5)
    assert [call for call in calls(tmp_path / "stand-in") if "log" in call] == ["log 3", "log 4", "log 5"]


def test_a_tracker_dies_with_the_process_of_the_run(tmp_path: Path) -> None:
    stand_in(tmp_path / "stand-in", "well")
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from support.trackers.recorded import tracked\n"
        "from streamrl.observability.trackers.tracker_process import TrackerProcess\n"
        "one = TrackerProcess('wandb', tracked(Path(sys.argv[1])), start_s=60.0, answer_s=60.0)\n"
        "while one.status()['state'] == 'starting': time.sleep(0.01)\n"
        "print(one.pid, flush=True)\n"
        "time.sleep(3600)\n"
    )
    places = [tmp_path / "stand-in", *_path(), TESTS]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        child = int(run.stdout.readline())
        ends = os.pidfd_open(child)
        run.kill()
    try:
        ended = select.poll()
        ended.register(ends, select.POLLIN)
        assert ended.poll(LONG_S * 1000)
    finally:
        os.close(ends)


def test_what_a_package_prints_is_in_a_log_of_its_own_that_stays_small(
    make: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert told(make("talk"), steps=5) == []
    assert "word" not in "".join(capfd.readouterr())
    text = (tmp_path / "runs/small/trackers/wandb.log").read_text()
    assert text.startswith("word 4")
    assert "word 5" in text
