"""What the guard of far rows says, and when it has the run pause: by the weights' spread, and by the distance."""

import pytest

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.scheduling.off_policy_guard import PATIENCE, ShareGuard

SHARE, DISTANCE = "correction/effective_share", "mismatch/kl"


def looked(guard: ShareGuard, metric: str, *values: float) -> list[str]:
    return [guard.check(step, {metric: value}) for step, value in enumerate(values)]


def test_a_fall_of_the_effective_share_is_told_once() -> None:
    told = looked(ShareGuard(AlgorithmConfig(least_effective_share=0.5)), SHARE, 0.6, 0.4, 0.3, 0.5, 0.2)
    assert [bool(text) for text in told] == [False, True, False, False, True]
    assert told[1].startswith(
        "step 1: the share of its tokens that their weights are worth (correction/effective_share) is 0.4, under "
        "learner.algorithm.least_effective_share = 0.5; "
    )


def test_a_rise_of_the_distance_is_told_once_also_where_the_weights_have_no_spread() -> None:
    guard = ShareGuard(AlgorithmConfig(most_mismatch_kl=0.1))
    told = [guard.check(step, {SHARE: 1.0, DISTANCE: kl}) for step, kl in enumerate((0.09, 0.11, 0.3, 0.1, 2.0))]
    assert [bool(text) for text in told] == [False, True, False, False, True]
    assert told[1].startswith(
        "step 1: the distance of engine and learner in nats (mismatch/kl) is 0.11, over "
        "learner.algorithm.most_mismatch_kl = 0.1; "
    )


@pytest.mark.parametrize(("metric", "worst"), [(SHARE, 0.0), (DISTANCE, 1e9)])
def test_a_guard_without_bounds_says_nothing_and_never_pauses(metric: str, worst: float) -> None:
    guard = ShareGuard(AlgorithmConfig())
    assert looked(guard, metric, *[worst] * (PATIENCE + 1)) == [""] * (PATIENCE + 1)
    assert guard.pause == ""


@pytest.mark.parametrize(
    ("bounds", "metric", "bad", "bound", "worse", "words"),
    [
        (
            {"least_effective_share": 0.5, "pause_effective_share": 0.3},
            SHARE,
            0.29,
            0.3,
            0.1,
            "was under learner.algorithm.pause_effective_share = 0.3, now 0.1; ",
        ),
        (
            {"most_mismatch_kl": 0.1, "pause_mismatch_kl": 0.4},
            DISTANCE,
            0.41,
            0.4,
            0.75,
            "was over learner.algorithm.pause_mismatch_kl = 0.4, now 0.75; ",
        ),
    ],
    ids=["share", "distance"],
)
def test_the_run_pauses_where_a_number_stays_beyond_its_bound(
    bounds: dict[str, float], metric: str, bad: float, bound: float, worse: float, words: str
) -> None:
    guard = ShareGuard(AlgorithmConfig(**bounds))
    looked(guard, metric, *[bad] * (PATIENCE - 1), bound, *[bad] * (PATIENCE - 1))
    assert guard.pause == ""
    guard.check(9, {metric: worse})
    assert guard.pause.startswith(f"paused at step 9: for {PATIENCE} steps ")
    assert words in guard.pause
    before = guard.pause
    guard.check(10, {metric: worse})
    assert guard.pause == before


def test_bad_steps_of_one_number_are_not_counted_for_the_other() -> None:
    guard = ShareGuard(
        AlgorithmConfig(
            least_effective_share=0.5, pause_effective_share=0.5, most_mismatch_kl=0.1, pause_mismatch_kl=0.1
        )
    )
    for step in range(2 * PATIENCE):
        guard.check(step, {SHARE: 0.4 if step % 2 else 1.0, DISTANCE: 0.0 if step % 2 else 0.2})
    assert guard.pause == ""
    both = guard.check(9, {SHARE: 0.4, DISTANCE: 0.2})
    assert both.count("step 9: ") == 1, "the share was low the step before"
    assert DISTANCE in both


def test_what_passes_two_bounds_at_once_is_told_of_both() -> None:
    guard = ShareGuard(AlgorithmConfig(least_effective_share=0.5, most_mismatch_kl=0.1))
    told = guard.check(4, {SHARE: 0.4, DISTANCE: 0.2})
    assert told.count("step 4: ") == 2


def test_a_step_that_trains_no_policy_counts_as_a_good_one() -> None:
    guard = ShareGuard(
        AlgorithmConfig(
            least_effective_share=1.0, pause_effective_share=1.0, most_mismatch_kl=1e-9, pause_mismatch_kl=1e-9
        )
    )
    assert [guard.check(step, {"loss/policy": 0.0}) for step in range(PATIENCE)] == [""] * PATIENCE
    assert guard.pause == ""
