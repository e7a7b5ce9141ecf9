"""What the page is told of each token, where figures are kept and where they are not."""

import numpy as np
import pytest

from streamrl.gateway.page.overlays import overlay
from streamrl.observability.token_figures import CLIPPED, REJECTED, TRUNCATED, RowFigures

SAMPLED = [True, True, False, False, True, True]
LOGPROBS = [-1.0, -0.5, 0.0, 0.0, -2.0, -0.25]


def figures(advantages: list[float], flags: list[int]) -> RowFigures:
    logprobs = np.array([-1.0, -0.75, -1.5, -0.25], np.float32)
    return RowFigures(
        logprobs, np.float32([0.5, 1.0, 1.5, 2.0]), np.array(advantages, np.float32), np.array(flags, np.uint8)
    )


def test_of_a_trained_row_each_target_has_its_figures_and_other_tokens_have_none() -> None:
    told = overlay(SAMPLED, SAMPLED, LOGPROBS, figures([1.0, 2.0, 3.0, 4.0], [0, CLIPPED, TRUNCATED, REJECTED]))
    assert told == {
        "entropy": [0.5, 1.0, None, None, 1.5, 2.0],
        "mismatch": [0.0, -0.25, None, None, 0.5, 0.0],
        "mask": [[0, "trained"], [1, "clipped"], [2, "given"], [4, "truncated"], [5, "rejected"]],
        "advantage": [1.0, 2.0, None, None, 3.0, 4.0],
    }


def test_an_advantage_that_all_targets_share_is_one_number() -> None:
    assert overlay(SAMPLED, SAMPLED, LOGPROBS, figures([0.5] * 4, [0] * 4))["advantage"] == 0.5


def test_of_several_flags_the_one_that_takes_most_away_is_told() -> None:
    flags = [CLIPPED | REJECTED, CLIPPED | TRUNCATED, TRUNCATED | REJECTED, CLIPPED | TRUNCATED | REJECTED]
    mask = overlay(SAMPLED, SAMPLED, LOGPROBS, figures([0.5] * 4, flags))["mask"]
    assert mask == [[0, "rejected"], [1, "clipped"], [2, "given"], [4, "rejected"]]


def test_the_first_token_of_a_row_without_a_prompt_is_sampled_and_no_target() -> None:
    targets = [False, *SAMPLED[1:]]
    short = RowFigures(*(column[1:] for column in figures([0.5] * 4, [0] * 4)))
    told = overlay(SAMPLED, targets, LOGPROBS, short)
    assert told["mask"][:2] == [[0, "left_out"], [1, "trained"]]
    assert told["entropy"][:2] == [None, 1.0]


def test_where_nothing_is_kept_what_follows_from_the_row_is_told_and_no_figure() -> None:
    told = overlay(SAMPLED, SAMPLED, LOGPROBS, None)
    assert told == {"entropy": None, "mismatch": None, "mask": [[0, "sampled"], [2, "given"], [4, "sampled"]]}
    assert overlay([], [], [], None)["mask"] == []


def test_a_row_that_its_step_left_out_is_told_so() -> None:
    nothing = RowFigures(*(np.zeros(0, np.float32),) * 3, np.zeros(0, np.uint8))
    told = overlay(SAMPLED, SAMPLED, LOGPROBS, nothing)
    assert told == {"entropy": None, "mismatch": None, "mask": [[0, "left_out"], [2, "given"], [4, "left_out"]]}


def test_figures_of_another_number_of_targets_are_never_laid_over_a_row() -> None:
    with pytest.raises(ValueError, match="could not be broadcast"):
        overlay([True] * 3, [True] * 3, [-1.0] * 3, figures([0.5] * 4, [0] * 4))
