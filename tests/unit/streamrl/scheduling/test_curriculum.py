"""Whose turn it is, by what was measured of each prompt."""

from collections.abc import Callable

import pytest

from streamrl.config.schema.data import CurriculumConfig
from streamrl.scheduling.curriculum import LOOK_AHEAD, Curriculum, Turn, next_turn

ITEMS = 4


def at(position: int) -> tuple[int, int]:
    return divmod(position, ITEMS)


def never(_: int) -> bool:
    return False


def turn(
    curriculum: Curriculum,
    start: int = 0,
    *,
    holds: Callable[[int], bool] = never,
    in_doubt: Callable[[int], bool] = never,
) -> Turn:
    return next_turn(start, at, holds, in_doubt, curriculum)


@pytest.mark.parametrize(
    ("low", "high", "mean", "rests"),
    [
        (None, None, 1.0, False),
        (None, 0.9, 1.0, True),
        (None, 0.9, 0.9, False),
        (0.1, None, 0.0, True),
        (0.1, None, 0.1, False),
        (0.1, 0.9, 0.5, False),
        (-1.0, 1.0, -1.5, True),
    ],
)
def test_a_prompt_outside_of_the_bounds_rests(low: float | None, high: float | None, mean: float, rests: bool) -> None:
    curriculum = Curriculum(CurriculumConfig(low=low, high=high))
    assert curriculum.acts == (low is not None or high is not None)
    curriculum.measured(2, 0, mean)
    assert (curriculum.rests(2, 1), curriculum.rests(3, 1), len(curriculum)) == (rests, False, int(rests))


def test_it_rests_for_so_many_passes_and_is_measured_again() -> None:
    curriculum = Curriculum(CurriculumConfig(high=0.9, rest=2))
    curriculum.measured(2, 3, 1.0)
    assert [curriculum.rests(2, data_pass) for data_pass in (4, 5, 6)] == [True, True, False]
    curriculum.measured(2, 6, 1.0)
    assert [curriculum.rests(2, data_pass) for data_pass in (7, 8, 9)] == [True, True, False]
    curriculum.measured(2, 9, 0.5)
    assert not curriculum.rests(2, 10)
    curriculum.measured(2, 9, 1.0)
    curriculum.forget()
    assert (curriculum.rests(2, 10), len(curriculum)) == (False, 0)


def test_turns_pass_over_those_that_rest_and_those_that_are_held() -> None:
    curriculum = Curriculum(CurriculumConfig(low=0.1, high=0.9, rest=1))
    assert turn(curriculum, 3) == Turn(3)
    curriculum.measured(0, 0, 1.0)
    assert turn(curriculum, ITEMS) == Turn(ITEMS + 1)
    assert turn(curriculum, ITEMS, holds=lambda item: item == 1) == Turn(ITEMS + 2)
    curriculum.measured(3, 0, 0.0)
    assert turn(curriculum, ITEMS + 3) == Turn(2 * ITEMS)


def test_where_all_rest_the_first_that_is_not_held_has_its_turn() -> None:
    curriculum = Curriculum(CurriculumConfig(high=0.9, rest=9))
    for item in range(ITEMS):
        curriculum.measured(item, 0, 1.0)
    assert turn(curriculum, ITEMS + 1) == Turn(ITEMS + 1)
    assert turn(curriculum, ITEMS + 1, holds=lambda item: item == 1) == Turn(ITEMS + 2)
    assert turn(curriculum, ITEMS, holds=lambda item: True) == Turn(None, exhausted=True)


def test_a_turn_that_hangs_on_what_runs_waits_for_it() -> None:
    curriculum = Curriculum(CurriculumConfig(high=0.9))
    curriculum.measured(0, 0, 1.0)
    waits = Turn(None, in_doubt=True)
    assert turn(curriculum, ITEMS, in_doubt=lambda item: item == 1) == waits
    assert turn(curriculum, ITEMS, in_doubt=lambda item: item == 2) == Turn(ITEMS + 1)
    assert turn(curriculum, ITEMS, in_doubt=lambda item: item == 1, holds=lambda item: item == 1) == Turn(ITEMS + 2)


def test_no_more_than_so_many_are_looked_at() -> None:
    curriculum, asked = Curriculum(CurriculumConfig(high=0.9)), []

    def many(position: int) -> tuple[int, int]:
        asked.append(position)
        return 1, position

    for item in range(10 * LOOK_AHEAD):
        curriculum.measured(item, 0, 1.0)
    assert next_turn(5, many, never, never, curriculum) == Turn(5)
    assert len(asked) == LOOK_AHEAD + 1
