"""Each finding of `streamrl why` is there when its figure says so, and not otherwise."""

from typing import Any

import pytest

from services.why import WINDOW, explain
from streamrl.config.learner_tables import AlgorithmConfig, CriticConfig, LearnerConfig
from streamrl.config.rollout_tables import AutoscalingConfig, RolloutConfig
from streamrl.config.schema import Config


def config() -> Config:
    """64 rollouts a step."""
    return Config(learner=LearnerConfig(groups_per_step=8), rollout=RolloutConfig(group_size=8))


def rows(count: int = 30, **metrics: Any) -> list[dict[str, Any]]:
    """Steps of a healthy run, but for `metrics` (a function is given the step); `__` in a key stands for
    `/`.
    """
    healthy = {"time__step": 0.2, "time__wait": 0.0, "reward__mean": lambda step: 0.5 + step / 1000}
    made = []
    for step in range(1, count + 1):
        values = {key: value(step) if callable(value) else value for key, value in {**healthy, **metrics}.items()}
        made.append({"step": step, **{key.replace("__", "/"): value for key, value in values.items()}})
    return made


def kinds(found: list[Any]) -> list[str]:
    return [finding.kind for finding in found]


@pytest.mark.parametrize(
    ("kind", "metrics", "says"),
    [
        ("bound by learner", {"time__wait": 0.01, "time__forward_backward": 0.15}, "forward_backward, 75%"),
        ("bound by generation", {"time__wait": 0.1, "rollout__idle_share": 0.02}, "waits 50%"),
        ("bound by admission", {"time__wait": 0.1, "rollout__idle_share": 0.4}, "max_staleness = 2"),
        ("bound by reward", {"time__wait": 0.1, "queue__unscored": 500}, "500 finished rollouts wait"),
        ("bound by generation", {"time__wait": 0.1, "queue__unscored": 64}, "generation is the slowest"),
    ],
)
def test_the_part_that_bounds_the_speed_is_named(kind: str, metrics: dict[str, Any], says: str) -> None:
    (finding,) = explain(rows(**metrics), config())
    assert finding.kind == kind
    assert says in finding.text
    assert finding.figures["time/step"] == pytest.approx(0.2)


def test_where_the_number_of_replicas_is_autoscaled_its_limit_is_what_to_raise() -> None:
    autoscaled = Config(rollout=RolloutConfig(autoscaling=AutoscalingConfig(max_replicas=2)))
    for given, key in ((config(), "raise rollout.replicas,"), (autoscaled, "raise rollout.autoscaling.max_replicas,")):
        (finding,) = explain(rows(time__wait=0.1), given)
        assert key in finding.text


@pytest.mark.parametrize(
    ("kind", "metrics"),
    [
        ("constant reward", {"reward__mean": 0.0}),
        ("zero variance", {"reward__zero_variance_share": 0.9}),
        ("failed scores", {"reward__failed": 4}),
        ("mismatch", {"mismatch__kl": 0.2}),
        ("clipped", {"ratio__clip_fraction": 0.5}),
        ("no gradient", {"grad__norm": 0.0}),
        ("entropy collapse", {"loss__entropy": lambda step: 1.0 / step**3}),
        ("discards", {"tokens__dropped": 12}),
    ],
)
def test_what_ails_the_learning_is_named(kind: str, metrics: dict[str, Any]) -> None:
    assert kinds(explain(rows(**metrics), config())) == ["bound by learner", kind]


def test_groups_of_equal_rewards_ail_no_run_that_compares_nothing_within_them() -> None:
    judged = LearnerConfig(groups_per_step=8, algorithm=AlgorithmConfig(advantage="gae"))
    single = Config(learner=judged, rollout=RolloutConfig(group_size=1))
    assert kinds(explain(rows(reward__zero_variance_share=1.0), single)) == ["bound by learner"]


def test_steps_of_the_critic_alone_have_no_gradient_of_the_policy_and_that_is_no_ailment() -> None:
    critic = CriticConfig(warmup_steps=30)
    judged = LearnerConfig(groups_per_step=8, algorithm=AlgorithmConfig(advantage="gae"), critic=critic)
    learning = Config(learner=judged)
    assert kinds(explain(rows(30, grad__norm=0.0), learning)) == ["bound by learner"]
    assert kinds(explain(rows(31, grad__norm=0.0), learning)) == ["bound by learner", "no gradient"]


def test_a_healthy_run_has_nothing_but_its_bound() -> None:
    healthy = {
        "reward__zero_variance_share": 0.3,
        "reward__failed": 0,
        "mismatch__kl": 0.001,
        "ratio__clip_fraction": 0.01,
        "grad__norm": 0.4,
        "loss__entropy": 0.7,
        "tokens__dropped": 0,
    }
    assert kinds(explain(rows(**healthy), config())) == ["bound by learner"]


def test_no_figure_gives_no_finding() -> None:
    assert explain([], config()) == []
    assert explain([{"step": 1}] * 20, config()) == []
    assert explain(rows(time__step=None, reward__mean=float("nan")), config()) == []


def test_only_the_newest_rows_count() -> None:
    old, new = rows(300, mismatch__kl=1.0), rows(WINDOW, mismatch__kl=0.0)
    assert "mismatch" not in kinds(explain([*old, *new], config()))
