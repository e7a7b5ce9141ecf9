"""Means of the components of scores, from sums that somebody else keeps."""

from streamrl.observability.component_means import MOST_NAMES, ComponentMeans, ComponentTotals
from streamrl.types import Score


def test_valid_scores_are_summed_by_name_and_failed_ones_are_left_out() -> None:
    totals = ComponentTotals()
    totals.add([Score.ok(1.0, {"right": 1.0, "short": 0.5}), Score.failed("no"), Score.ok(0.0, {"right": 0.0})])
    assert totals.told == {"right": (1.0, 2), "short": (0.5, 1)}


def test_any_number_of_names_is_bounded() -> None:
    totals = ComponentTotals()
    totals.add([Score.ok(0.0, {str(name): 1.0 for name in range(2 * MOST_NAMES)})])
    totals.add([Score.ok(0.0, {"0": 3.0, "more": 1.0})])
    assert len(totals.told) == MOST_NAMES
    assert totals.told["0"] == (4.0, 2)


def test_a_mean_is_of_what_came_since_the_last_look() -> None:
    means = ComponentMeans()
    assert means.since_last({}) == {}
    assert means.since_last({"right": (2.0, 4)}) == {"right": 0.5}
    assert means.since_last({"right": (2.0, 4), "new": (3.0, 1)}) == {"new": 3.0}
    assert means.since_last({"right": (5.0, 6), "new": (3.0, 1)}) == {"right": 1.5}


def test_a_stage_that_begins_anew_counts_from_zero() -> None:
    means = ComponentMeans()
    means.since_last({"right": (20.0, 40)})
    assert means.since_last({"right": (1.0, 4)}) == {"right": 0.25}
