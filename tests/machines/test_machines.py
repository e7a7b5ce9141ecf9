"""Three steps of a run on machines, in shells and beside neighbours as users have them."""

import os
import subprocess
from pathlib import Path

import pytest
from support.runs.conditions import CONDITIONS
from support.runs.live_run import LIMIT_S, STREAMRL, prepare

STEPS = ("--learner.steps", "3", "--warmup.max_steps", "0", "--rollout.replicas", "1", "--eval.max_items", "8")


@pytest.mark.parametrize("name", CONDITIONS)
def test_three_steps_are_made_or_the_way_out_is_told(name: str, tmp_path: Path) -> None:
    condition = CONDITIONS[name]
    if lacking := condition.lacks():
        pytest.skip(f"{name}: this machine has no {lacking}")
    folder = tmp_path / condition.folder
    (folder / "runs").mkdir(parents=True)
    prepare(folder)
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **condition.environment}
    done = subprocess.run(
        condition.wrap([str(STREAMRL), "up", "base.toml", *STEPS]),
        cwd=folder,
        env={key: value for key, value in environment.items() if value is not None},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == condition.code, done.stdout
    for words in condition.told:
        assert words in done.stdout
    finished = (folder / "runs" / "test" / "summary.json").exists()
    assert finished == (condition.code == 0), done.stdout
