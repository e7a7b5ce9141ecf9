"""A run on a real Ray whose rewards are a rule's and a reward model's: trained, scored, logged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from finished_run import Finished
from reward_models import random_reward_model

pytestmark = pytest.mark.ray

STEPS = 6
SCORES = "select reward, to_json(components) as parts, status from scores"


@pytest.mark.long
def test_a_run_trains_on_the_weighted_sum_of_a_rule_and_a_reward_model(
    train: Callable[..., Finished], streamrl: Callable[..., Finished], tmp_path: Path
) -> None:
    model = random_reward_model(tmp_path / "scores", seed=2, head=0.1)
    overrides = ("--reward.model.path", str(model), "--reward.model.weight", "0.5", "--learner.steps", str(STEPS))
    run = train("reward-model", *overrides)
    assert run.code == 0, run.output
    assert [line["step"] for line in run.metrics()] == list(range(1, STEPS + 1))
    rows = json.loads(streamrl("sql", "reward-model", SCORES, "--json").output)
    assert len(rows) >= STEPS * 8 * 4
    for row in rows:
        parts = row["parts"] if isinstance(row["parts"], dict) else json.loads(row["parts"])
        assert row["status"] == "ok"
        assert row["reward"] == parts["reward"] == pytest.approx(parts["rule"] + 0.5 * parts["reward_model"])
    rewards = {row["reward"] for row in rows}
    assert len(rewards) > 100
    assert min(rewards) < 0.0 or max(rewards) > 1.0  # what the rule alone never gives
