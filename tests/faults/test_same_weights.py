"""In deterministic mode a run that was killed at random points, whatever process it was, ends with weights that are
equal to the bit to those of a run that nobody disturbed, step by step.

`KILLS` kills (default 20), each of a process of a random kind after a random number of steps. A failing run prints its
seed; `SEED` replays the choices.
"""

import json
import os
import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.runs.live_run import live_run
from support.runs.storm import KINDS, Storm

pytestmark = pytest.mark.ray

KILLS = int(os.environ.get("KILLS", "20"))
SEED = int(os.environ.get("SEED", secrets.randbits(32)))
KILLED = sorted(set(KINDS) - {"gateway"})
"""The run has no gateway."""
STEPS_BETWEEN = (1, 6)
STEPS = KILLS * STEPS_BETWEEN[1] + 40
"""On a busy machine a run is many steps further than what is read of it: it must not end before the last kill."""
SAME = ("step", "loss/policy", "grad/norm", "weights/digest", "reward/mean")
OVERRIDES = (
    *("--rollout.deterministic", "true", "--rollout.update_mode", "drain", "--learner.max_staleness", "0"),
    *("--learner.steps", str(STEPS), "--checkpoint.every", "3", "--eval.every", "100000", "--eval.max_items", "1"),
    *("--observe.trace", "false", "--deadlines.stop_s", "10"),
)


def steps_of(folder: Path) -> list[list[Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[line[key] for key in SAME] for line in lines if "loss/policy" in line]


@pytest.mark.timeout(480 + 90 * KILLS)
def test_a_run_killed_at_random_points_makes_the_weights_of_an_undisturbed_one(
    user_folder: Path, streamrl_path: Path
) -> None:
    print(f"SEED={SEED} KILLS={KILLS}")
    with live_run(user_folder, streamrl_path, "same-calm", *OVERRIDES) as calm:
        code, err = calm.end()
    assert code == 0, err
    rng = np.random.default_rng([SEED, 7])
    with closing(Storm(user_folder, streamrl_path, "same-storm", OVERRIDES)) as storm:
        for _ in range(KILLS):
            storm.go_on(int(rng.integers(*STEPS_BETWEEN)))
            storm.kill(str(rng.choice(KILLED)), rng)
        storm.finish()
    expected = steps_of(calm.folder)
    assert len(expected) == STEPS
    assert steps_of(storm.run.folder) == expected
