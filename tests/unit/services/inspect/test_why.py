"""Each finding of `streamrl why` is there when its figure says so, and not otherwise."""

from typing import Any

import pytest
from msgspec import structs

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.environment import EnvironmentConfig
from streamrl.config.schema.learner import CriticConfig, LearnerConfig
from streamrl.config.schema.rollout import AutoscalingConfig, RolloutConfig
from streamrl.config.schema.run import Config
from streamrl.services.inspect.why import WINDOW, explain


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


WAITS = {"time__wait": 0.1}


def stalls(seconds: float) -> dict[str, float]:
    """Two updates a step, one of each of two replicas, each of which stands still so long."""
    return {"weights__updates": 2, "weights__stall_s": seconds, "rollout__replicas": 2}


def way(seconds: float) -> dict[str, float]:
    """Of a version to the replicas, nobody having stood still for it."""
    parts = {"weights__seconds": 0.5 * seconds, "weights__transfer_s": 0.2 * seconds, "weights__load_s": 0.3 * seconds}
    return {**stalls(0.0), **parts}


def mismatch(**of_replicas: Any) -> dict[str, Any]:
    """`mismatch/rollout-1/kl` for `r1`."""
    return {f"mismatch__rollout-{name[1:]}__kl": value for name, value in of_replicas.items()}


@pytest.mark.parametrize(
    ("kind", "metrics", "says"),
    [
        ("bound by learner", {"time__wait": 0.01, "time__forward_backward": 0.15}, "forward_backward, 75%"),
        ("bound by generation", {"time__wait": 0.1, "rollout__idle_share": 0.02}, "waits 50%"),
        ("bound by admission", {"time__wait": 0.1, "rollout__idle_share": 0.4}, "max_staleness = 2"),
        ("bound by reward", {"time__wait": 0.1, "queue__unscored": 500}, "500 finished rollouts wait"),
        ("bound by reward", {"time__wait": 0.1, "queue__unscored_s": 0.06}, "60% of that for nothing but scores"),
        ("bound by generation", {"time__wait": 0.1, "queue__unscored": 64}, "generation is the slowest"),
        (
            "bound by weights",
            {"time__publish": 0.15, "weights__room_s": 0.1},
            "75% of its time until the version before",
        ),
        ("bound by weights", {**WAITS, **stalls(0.1)}, "stand still 50% of the replicas' time"),
        (
            "bound by weights",
            {**WAITS, "rollout__idle_share": 0.4, **way(0.33)},
            "takes 0.33 s to reach them, 55% of 3",
        ),
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
        ("truncated", {"reward__truncated_share": 0.25}),
        ("drifting replica", mismatch(r0=0.001, r1=0.1)),
        ("mismatch", {"mismatch__kl": 0.2}),
        ("clipped", {"ratio__clip_fraction": 0.5}),
        ("no gradient", {"grad__norm": 0.0}),
        ("entropy collapse", {"loss__entropy": lambda step: 1.0 / step**3}),
        ("discards", {"tokens__dropped": 12}),
    ],
)
def test_what_ails_the_learning_is_named(kind: str, metrics: dict[str, Any]) -> None:
    assert kinds(explain(rows(**metrics), config())) == ["bound by learner", kind]


@pytest.mark.parametrize(
    ("metrics", "kind"),
    [
        ({**WAITS, **stalls(0.049)}, "bound by generation"),
        ({**WAITS, "rollout__idle_share": 0.4, **way(0.29)}, "bound by admission"),
        ({**WAITS, "rollout__idle_share": 0.05, **way(0.9)}, "bound by generation"),
        ({**WAITS, "queue__unscored": 500, **stalls(0.1)}, "bound by reward"),
        ({**WAITS, "queue__unscored_s": 0.04, **stalls(0.1)}, "bound by weights"),
        ({"time__publish": 0.07, "time__optimizer": 0.08}, "bound by learner"),
    ],
)
def test_what_versions_take_is_no_bound_where_it_is_not_the_larger_part(metrics: dict[str, Any], kind: str) -> None:
    assert kinds(explain(rows(**metrics), config())) == [kind]


def test_what_the_first_step_waits_for_is_no_bound_of_those_after_it() -> None:
    slow_start = rows(4, time__wait=lambda step: 50.0 if step == 1 else 0.0)
    assert kinds(explain(slow_start, config())) == ["bound by learner"]
    assert kinds(explain(slow_start[:1], config())) == ["bound by generation"]


def test_stalls_are_a_share_of_the_time_of_all_steps_also_of_those_without_an_update() -> None:
    made = rows(31, **WAITS, **stalls(0.12))
    for row in made[::2]:
        del row["weights/updates"], row["weights/stall_s"]
    (finding,) = explain(made, config())
    assert finding.kind == "bound by weights"
    assert finding.figures["stall_share"] == pytest.approx(0.3)


def test_a_run_that_drains_for_each_version_is_told_that_it_need_not() -> None:
    for mode, advised in (("keep", False), ("recompute", True), ("drain", True)):
        (finding,) = explain(rows(**WAITS, **stalls(0.1)), Config(rollout=RolloutConfig(update_mode=mode)))
        assert ('set rollout.update_mode = "keep"' in finding.text) is advised


@pytest.mark.parametrize("missing", ["time/step", "rollout/replicas", "weights/updates", "weights/stall_s"])
def test_without_one_of_its_figures_there_is_no_share_of_stalls(missing: str) -> None:
    made = rows(**WAITS, **stalls(0.1))
    for row in made:
        row.pop(missing)
    assert "bound by weights" not in kinds(explain(made, config()))


@pytest.mark.parametrize("missing", ["rollout/idle_share", "weights/seconds", "weights/transfer_s", "weights/load_s"])
def test_without_one_of_its_parts_there_is_no_way_of_a_version(missing: str) -> None:
    made = rows(**WAITS, rollout__idle_share=0.4, **way(0.33))
    for row in made:
        row.pop(missing)
    assert "bound by weights" not in kinds(explain(made, config()))


def test_the_share_of_answers_that_were_cut_comes_with_the_limit_that_cut_them() -> None:
    (finding,) = explain(rows(reward__truncated_share=0.625), config())[1:]
    assert finding.figures == {"reward/truncated_share": 0.625}
    assert "62% of the answers were cut at rollout.sampling.max_new_tokens = 16" in finding.text


@pytest.mark.parametrize(
    ("limit", "told"),
    [
        ("max_turns", "62% of the episodes were ended by environment.max_turns = 8, before their end"),
        ("episode_timeout_s", "62% of the episodes were ended by environment.episode_timeout_s = 120.0"),
        ("max_new_tokens", "62% of the episodes were ended by rollout.sampling.max_new_tokens = 16"),
    ],
)
def test_of_episodes_it_is_the_limit_that_ended_most(limit: str, told: str) -> None:
    played = structs.replace(config(), environment=EnvironmentConfig(name="tools", tools=("calculator",)))
    made = rows(reward__truncated_share=0.625)
    for row in made:
        row |= {"environment/limit/max_tokens": 1, f"environment/limit/{limit}": 3}
    (finding,) = explain(made, played)[1:]
    assert told in finding.text


def test_a_drifting_replica_is_named_with_its_figure_and_its_peers() -> None:
    (finding,) = explain(rows(**mismatch(r0=0.001, r1=0.003, r2=0.002, r10=0.5)), config())[1:]
    assert finding.figures == {"mismatch/rollout-10/kl": 0.5, "peers_median": 0.002}
    assert finding.text.startswith("rollout-10 gives other probabilities than the learner (KL 0.5 a token; ")


@pytest.mark.parametrize(
    "metrics",
    [
        mismatch(r0=0.5),
        mismatch(r0=0.2, r1=0.5),
        mismatch(r0=0.0001, r1=0.009),
        mismatch(r0=0.001, r1=lambda step: 0.5 if step % 3 == 0 else 0.001),
        mismatch(r0=0.001, r1=lambda step: 0.5 if step <= 15 else 0.001),
        mismatch(r0=0.001, r1=lambda step: 0.5 if step <= 4 or step > 26 else None),
        {"mismatch__trajectories__kl": 0.5, **mismatch(r0=0.001, r1=0.001)},
    ],
    ids=["alone", "all are off", "rounding", "single tokens", "past", "too few rows", "a client's trajectories"],
)
def test_a_replica_does_not_drift_that(metrics: dict[str, Any]) -> None:
    assert "drifting replica" not in kinds(explain(rows(**metrics), config()))


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
        "reward__truncated_share": 0.2,
        **mismatch(r0=0.001, r1=0.002),
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
