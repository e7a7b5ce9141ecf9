"""What the trackers of a run are told at its beginning and its end, and what the run says of them."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.learner.probe_learner import open_run

from streamrl.config import Config, check_trackers
from streamrl.config.schema.observe import ObserveConfig
from streamrl.config.schema.run import DeadlineConfig, RewardConfig
from streamrl.services.controller.books import RunBook
from streamrl.services.controller.trackers import SMALL_EXPORT_BYTES, ending, finish_limit_s, is_small, tracked_run

TENSORBOARD = Config(observe=ObserveConfig(trackers=("tensorboard",)))
SUMMARY = {"steps": 3, "wall_s": 0.0}


def step(number: int) -> dict[str, Any]:
    return {"step": number, "time/step": 1.0, "time/wait": 0.5, "staleness/max": 0, "staleness/mean": 0.0}


def test_no_secret_of_the_configuration_reaches_a_tracker(tmp_path: Path) -> None:
    options = {"api_key": "sk-123", "url": "http://judge", "headers": {"Authorization": "Bearer abc"}}
    config = Config(reward=RewardConfig(options=options))
    run = open_run(config, tmp_path)
    told = [json.dumps(tracked_run(run, config).config)]
    told += [Path(path).read_text() for path in ending(run, config, SUMMARY, stopping=False).files]
    assert len(told) == 2
    for text in told:
        assert "sk-123" not in text
        assert "abc" not in text
        assert "http://judge" in text


@pytest.mark.parametrize(
    ("summary", "stopping", "state"), [(SUMMARY, False, "finished"), ({}, True, "stopped"), ({}, False, "failed")]
)
def test_a_launch_ends_as_it_did_and_its_wall_clock_is_not_made_up(
    tmp_path: Path, summary: dict[str, Any], stopping: bool, state: str
) -> None:
    told = ending(open_run(Config(), tmp_path), Config(), summary, stopping=stopping)
    assert (told.state, told.summary) == (state, {"steps": 3} if summary else {})


def test_an_export_is_handed_on_of_a_run_that_finished_and_while_it_is_small(tmp_path: Path) -> None:
    run = open_run(Config(), tmp_path)
    assert ending(run, Config(), SUMMARY, stopping=False).export == ""
    run.export_path.mkdir()
    (run.export_path / "model.safetensors").write_bytes(b"weights")
    assert ending(run, Config(), SUMMARY, stopping=False).export == str(run.export_path.resolve())
    assert ending(run, Config(), {}, stopping=True).export == ""
    with (run.export_path / "more.safetensors").open("wb") as file:
        file.truncate(SMALL_EXPORT_BYTES)
    assert not is_small(run.export_path)


def test_a_run_that_is_stopped_waits_for_a_part_of_its_time_alone() -> None:
    config = Config(deadlines=DeadlineConfig(stop_s=10.0, tracker_s=30.0))
    assert (finish_limit_s(config, stopping=False), finish_limit_s(config, stopping=True)) == (30.0, 2.5)
    assert finish_limit_s(Config(deadlines=DeadlineConfig(stop_s=10.0, tracker_s=1.0)), stopping=True) == 1.0


def test_status_has_the_trackers_and_a_run_without_them_says_nothing(tmp_path: Path) -> None:
    book = RunBook(open_run(TENSORBOARD, tmp_path / "with"), TENSORBOARD)
    book.report("step", step(1))
    book.finish_trackers(stopping=False)
    told = book.status()["trackers"]["tensorboard"]
    assert (told["state"], told["taken"]) == ("finished", 2)
    book.close()
    plain = RunBook(open_run(Config(), tmp_path / "without"), Config())
    assert "trackers" not in plain.status()
    plain.close()


async def test_a_tracker_that_cannot_start_is_a_notice_of_the_run(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    (tmp_path / "wandb.py").write_text("raise RuntimeError('damaged')")
    config = msgspec.structs.replace(TENSORBOARD, observe=ObserveConfig(trackers=("wandb",)))
    book = RunBook(open_run(config, tmp_path / "run"), config)
    book.finish_trackers(stopping=False)
    book.close()
    _, events = await book.events.after(0)
    reason = "it did not start: RuntimeError: damaged"
    assert [event["text"] for event in events] == [f"tracker wandb is dropped: {reason}; the run goes on without it"]


def test_a_check_names_each_tracker_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(observe=ObserveConfig(trackers=("wandb",)))
    (tmp_path / "wandb.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    (problem,) = check_trackers(config, {"HOME": str(tmp_path)})
    assert str(problem).startswith("this machine: observe.trackers: wandb: no key; set WANDB_API_KEY")
    assert check_trackers(config, {"HOME": str(tmp_path), "WANDB_API_KEY": "k"}) == []
    assert check_trackers(Config(), {}) == []
