"""A real run with a tracker that hangs and one that does not: it ends as it would, and the other has all of it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs.finished_run import Finished
from support.trackers.stand_in import calls, stand_in

pytestmark = [pytest.mark.ray, pytest.mark.long]

STEPS = 12
TRACKED = ("--observe.trackers", '["wandb", "tensorboard"]', "--observe.names", "verl", "--deadlines.tracker_s", "10")


@pytest.fixture(scope="module")
def stand_in_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in(tmp_path_factory.mktemp("stand-in"), "hang")


@pytest.fixture(scope="module")
def tracked(train: Callable[..., Finished], stand_in_folder: Path) -> Finished:
    places = [str(stand_in_folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(places))
        patch.setenv("WANDB_API_KEY", "key")
        finished = train("tracked", "--learner.steps", str(STEPS), *TRACKED)
    assert finished.code == 0, finished.output
    return finished


def test_a_tracker_that_hangs_is_told_once_and_the_run_finishes(tracked: Finished, stand_in_folder: Path) -> None:
    assert calls(stand_in_folder)[1:] == ["log 1"]
    events = [json.loads(line) for line in (tracked.folder / "events.jsonl").read_text().splitlines()]
    notices = [event["text"] for event in events if event["kind"] == "notice" and "tracker" in event["text"]]
    assert len(notices) == 1
    assert notices[0].startswith("tracker wandb is dropped: it ")


def test_the_other_has_every_step_by_both_names_with_samples_and_summary(tracked: Finished) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tracked.folder / "tensorboard"))
    events.Reload()
    for key in ("reward/mean", "critic/score/mean", "perf/throughput"):
        assert [event.step for event in events.Scalars(key)] == list(range(1, STEPS + 1))
    (samples,) = events.Tensors("samples")
    (text,) = samples.tensor_proto.string_val
    header, _, *rows = text.decode().splitlines()
    assert header.startswith("| step | group | sample | prompt | completion | reward |")
    assert len(rows) == 64
    (config,) = events.Tensors("config")
    assert b'"dense:reward"' in config.tensor_proto.string_val[0]
    (summary,) = events.Tensors("summary")
    assert f'"steps": {STEPS}'.encode() in summary.tensor_proto.string_val[0]
