"""A run on a real Ray whose rewards are a rule's and a reward model's: trained, scored, logged."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.rewards.reward_models import random_reward_model
from support.runs.finished_run import Finished

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


@pytest.mark.long
def test_the_four_models_of_ppo_are_in_one_stream_on_two_ranks(train: Callable[..., Finished], tmp_path: Path) -> None:
    model = random_reward_model(tmp_path / "scores", seed=2, head=0.1)
    scored = ("--reward.model.path", str(model), "--reward.model.weight", "0.5")
    held = ("--learner.algorithm.kl_coef", "0.05", "--learner.algorithm.kl_in", "reward")
    judged = ("--learner.algorithm.advantage", "gae", "--learner.algorithm.kl_estimator", "k1")
    run = train("ppo", *scored, *held, *judged, "--learner.num_workers", "2", "--learner.steps", str(STEPS))
    assert run.code == 0, run.output
    lines = run.metrics()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert all({"critic/loss", "critic/value_mean", "reward/kl", "loss/policy"} <= line.keys() for line in lines)
    # The policy samples as the reference does at first, and other versions follow.
    assert abs(lines[0]["reward/kl"]) < 1e-3
    assert len({line["weights/digest"] for line in lines}) == STEPS
    assert lines[0]["critic/value_mean"] == 0.0 != lines[-1]["critic/value_mean"]
