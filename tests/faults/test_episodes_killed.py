"""A run of episodes whose parts are killed in the middle of them: nothing is lost or trained twice."""

import json
import signal
import subprocess
from pathlib import Path

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


def kill_one(run: LiveRun, victims: Victims) -> None:
    """Kill one of these processes, and let the run train ten more steps."""
    victims(run)[0].kill()
    run.until_step(run.steps()[-1]["step"] + 10)


def test_killed_environments_replicas_and_scorers_come_back_and_nothing_is_trained_twice(
    tmp_path: Path, streamrl_path: Path
) -> None:
    (tmp_path / "base.toml").write_text((ROOT / "configs/tools-quickstart.toml").read_text())
    with live_run(tmp_path, streamrl_path, "killed", *ENDLESS) as run:
        run.until_step(5)
        kill_one(run, ENVIRONMENT_CHILD)
        for kind in ("replica", "reward-child", "reward", "learner"):
            kill_one(run, KINDS[kind])
        kill_one(run, ENVIRONMENT_CHILD)
        status = subprocess.run([streamrl_path, "status", run.folder, "--json"], capture_output=True, check=True)
        run.process.send_signal(signal.SIGINT)
        code, err = run.end()
    assert code == 130, err
    replicas = json.loads(status.stdout)["replicas"]
    assert sum(one["tokens_continued"] for one in replicas) > 0, "turns of the killed replica are not sampled again"
    trained = trained_groups(run.folder)
    assert len(set(trained)) == len(trained) == 32 * run.steps()[-1]["step"]
    for row in rows_of(run.folder):
        assert row["finish_reason"] in ("stop", "length"), "a killed process is nobody's failed rollout"


def rows_of(folder: Path) -> list[dict]:
    reader = SegmentReader(folder)
    paths = sorted((folder / COMPLETIONS_DIR).glob("*.arrow"))
    frames = [frame for path in paths for frame in reader.scan(str(path.relative_to(folder)))]
    return [row for frame in frames for row in reader.read(frame).to_pylist()]
