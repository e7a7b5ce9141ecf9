"""A run of episodes whose parts are killed in the middle of them: nothing is lost or trained twice."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.queue.trained_groups import trained_groups
from support.repository import ROOT
from support.runs.live_run import LiveRun, live_run
from support.runs.storm import ENVIRONMENT_CHILD, KINDS, Victims

from streamrl.buffers.segments.places import COMPLETIONS_DIR
from streamrl.buffers.segments.reader import SegmentReader

pytestmark = pytest.mark.ray

# It has no end of its own. A random model: its messages are long, and most of its episodes are cut.
ENDLESS = ("--warmup.max_steps", "0", "--eval.every", "100000", "--learner.steps", "1000000", "--rollout.replicas", "2")


MOST_KILLS = 20


def kill_one(run: LiveRun, victims: Victims) -> None:
    """Kill one of these processes, and let the run train ten more steps."""
    victims(run)[0].kill()
    run.until_step(run.steps()[-1]["step"] + 10)


def kill_until_continued(run: LiveRun, streamrl: Path) -> None:
    """Kill a replica that samples until another goes on from what it left. One that has just begun leaves nothing."""
    for _ in range(MOST_KILLS):
        assert run.read_until(lambda event: event["kind"] == "replicas" and bool(sampling(event))), run.events[-3:]
        run.replica(sampling(run.events[-1])[0]).kill()
        run.until_step(run.steps()[-1]["step"] + 10)
        status = subprocess.run([streamrl, "status", run.folder, "--json"], capture_output=True, check=True)
        if any(one["tokens_continued"] for one in json.loads(status.stdout)["replicas"]):
            return
    raise AssertionError(f"after {MOST_KILLS} kills no turn of a killed replica was gone on from")


def sampling(event: dict[str, Any]) -> list[str]:
    return [one["name"] for one in event["replicas"] if one["running"]]


def test_killed_environments_replicas_and_scorers_come_back_and_nothing_is_trained_twice(
    tmp_path: Path, streamrl_path: Path
) -> None:
    (tmp_path / "base.toml").write_text((ROOT / "configs/tools-quickstart.toml").read_text())
    with live_run(tmp_path, streamrl_path, "killed", *ENDLESS) as run:
        run.until_step(5)
        kill_one(run, ENVIRONMENT_CHILD)
        kill_until_continued(run, streamrl_path)
        for kind in ("reward-child", "reward", "learner"):
            kill_one(run, KINDS[kind])
        kill_one(run, ENVIRONMENT_CHILD)
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    trained = trained_groups(run.folder)
    assert len(set(trained)) == len(trained) == 32 * run.steps()[-1]["step"]
    for row in rows_of(run.folder):
        assert row["finish_reason"] in ("stop", "length"), "a killed process is nobody's failed rollout"


def rows_of(folder: Path) -> list[dict]:
    reader = SegmentReader(folder)
    paths = sorted((folder / COMPLETIONS_DIR).glob("*.arrow"))
    frames = [frame for path in paths for frame in reader.scan(str(path.relative_to(folder)))]
    return [row for frame in frames for row in reader.read(frame).to_pylist()]
