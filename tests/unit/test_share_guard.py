"""What the guard of old rows says, and when it has the run pause."""

from streamrl.config.learner_tables import AlgorithmConfig
from streamrl.share_guard import PATIENCE, ShareGuard


def looked(guard: ShareGuard, *shares: float) -> list[str]:
    return [guard.look(step, share) for step, share in enumerate(shares)]


def test_a_fall_of_the_effective_share_is_told_once() -> None:
    told = looked(ShareGuard(AlgorithmConfig(least_effective_share=0.5)), 0.6, 0.4, 0.3, 0.7, 0.2)
    assert [bool(text) for text in told] == [False, True, False, False, True]
    assert told[1].startswith(
        "step 1: the weights of its tokens are worth 40% of them, under learner.algorithm.least_effective_share = 0.5"
    )


def test_a_guard_without_bounds_says_nothing_and_never_pauses() -> None:
    guard = ShareGuard(AlgorithmConfig())
    assert looked(guard, *[0.0] * (PATIENCE + 1)) == [""] * (PATIENCE + 1)
    assert guard.pause == ""


def test_the_run_pauses_where_the_share_stays_low() -> None:
    guard = ShareGuard(AlgorithmConfig(least_effective_share=0.5, pause_effective_share=0.3))
    looked(guard, *[0.2] * (PATIENCE - 1), 0.3, *[0.29] * (PATIENCE - 1))
    assert guard.pause == ""
    guard.look(step=9, share=0.1)
    assert guard.pause.startswith("paused at step 9: ")
    assert "less than learner.algorithm.pause_effective_share = 0.3 of them, now 10%" in guard.pause
    before = guard.pause
    guard.look(step=10, share=0.05)
    assert guard.pause == before
