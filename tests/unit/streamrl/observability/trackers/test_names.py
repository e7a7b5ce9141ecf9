"""Names of other systems: every source is a key of a real run, in the unit that the other system has."""

from collections.abc import Mapping

import pytest
from support.repository import ROOT
from support.trackers.recorded import lines

from streamrl.observability.trackers.base import numbers_of
from streamrl.observability.trackers.names import TABLES, Equal, NamedFigures

RECORDED = {key for line in lines() for key, value in line.items() if isinstance(value, int | float)}
OTHER_SETTINGS = {
    "loss/kl": "learner.algorithm.reference",
    "critic/loss": "learner.critic",
    "critic/clip_fraction": "learner.critic",
    "critic/explained_variance": "learner.critic",
    "critic/value_mean": "learner.critic",
}
"""Keys that a run has only with these tables set."""


@pytest.mark.parametrize("names", [name for name in TABLES if name != "none"])
def test_each_source_is_a_key_of_a_real_run_or_of_a_table_that_the_run_did_not_have(names: str) -> None:
    sources = {key for equal in table(names).values() for key in (equal.key, equal.over) if key is not None}
    assert sources - RECORDED - OTHER_SETTINGS.keys() == set()


def test_what_only_other_settings_have_is_not_recorded_and_is_written_by_the_learner() -> None:
    assert OTHER_SETTINGS.keys() & RECORDED == set()
    learner = "".join(path.read_text() for path in (ROOT / "streamrl/learner").rglob("*.py"))
    assert [key for key in OTHER_SETTINGS if f'"{key}"' not in learner] == []


@pytest.mark.parametrize(
    ("names", "some"),
    [
        (
            "trl",
            ("reward", "reward_std", "entropy", "grad_norm", "learning_rate", "completions/mean_length", "step_time"),
        ),
        ("verl", ("critic/score/mean", "actor/entropy", "actor/grad_norm", "response_length/mean", "perf/throughput")),
        ("prime", ("loss/mean", "entropy/mean", "mismatch_kl/mean", "optim/lr", "optim/grad_norm", "perf/throughput")),
    ],
)
def test_a_real_line_has_the_names_that_dashboards_ask_for(names: str, some: tuple[str, ...]) -> None:
    figures = NamedFigures(names).of(numbers_of(lines()[-2]))
    assert set(some) <= figures.keys()


def test_a_name_has_the_value_of_its_source_and_a_ratio_that_of_two() -> None:
    own = {"time/step": 2.0, "length/sum": 100.0, "time/forward_backward": 0.5, "reward/mean": -1.0, "step": 7.0}
    assert NamedFigures("verl", num_devices=4).of(own) == {
        "training/global_step": 7.0,
        "critic/score/mean": -1.0,
        "critic/rewards/mean": -1.0,
        "timing_s/step": 2.0,
        "timing_s/update_actor": 0.5,
        "timing_per_token_ms/update_actor": 5.0,
        "perf/time_per_step": 2.0,
        "perf/total_num_tokens": 100.0,
        "perf/throughput": 12.5,
    }


def test_without_its_source_or_over_nothing_a_figure_is_not_there() -> None:
    assert NamedFigures("prime").of({"length/sum": 5.0}) == {}
    assert NamedFigures("prime").of({"length/sum": 5.0, "time/step": 0.0}) == {"time/step": 0.0}
    assert NamedFigures("none").of({"reward/mean": 1.0}) == {}


def test_no_name_of_another_system_hides_a_key_of_ours_that_says_something_else() -> None:
    for names in TABLES:
        clashes = {name: equal for name, equal in table(names).items() if name in RECORDED}
        assert {name: Equal(name) for name in clashes} == clashes


def table(names: str) -> Mapping[str, Equal]:
    return {str(known): equals for known, equals in TABLES.items()}[names]
