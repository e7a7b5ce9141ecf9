"""The curves of `make bench-e2e`: the best rate of a side, samples to a score, and the picture."""

from xml.etree import ElementTree

import pytest
from bench_e2e import add_scores
from e2e_parts.curves import Curve, Point, best_of, rollouts_to
from e2e_parts.picture import draw
from report import Report

SLOW = Curve("TRL", 3e-4, (Point(0, 0.3), Point(512, 0.35), Point(1024, 0.4)))
QUICK = Curve("TRL", 1e-3, (Point(0, 0.3), Point(512, 0.7), Point(1024, 0.5)))
OURS = Curve("streamrl", 1e-3, (Point(0, 0.3), Point(512, 0.6), Point(1024, 0.8)))
CURVES = (OURS, SLOW, QUICK)


def test_the_best_rate_of_a_side_is_the_one_that_ends_highest() -> None:
    assert best_of(CURVES, "TRL") is QUICK
    assert best_of((SLOW, OURS), "TRL") is SLOW


def test_a_side_without_a_curve_has_no_best() -> None:
    with pytest.raises(ValueError, match="empty"):
        best_of((OURS,), "TRL")


@pytest.mark.parametrize(
    ("score", "rollouts"), [(0.2, 0), (0.3, 0), (0.45, 256), (0.6, 512), (0.7, 768), (0.8, 1024), (0.81, None)]
)
def test_rollouts_to_a_score_lie_on_the_line_between_two_points(score: float, rollouts: float | None) -> None:
    assert rollouts_to(OURS.points, score) == (rollouts if rollouts is None else pytest.approx(rollouts))


def held(monkeypatch: pytest.MonkeyPatch, tmp_path, *curves: Curve) -> tuple[int, dict[str, float]]:
    monkeypatch.setattr("report.figures.OUT", tmp_path)
    report = Report("e2e")
    add_scores(report, curves, 2)
    rows = report.write()["rows"]
    return report.finish(), {row["name"]: row["value"] for row in rows}


def test_the_best_of_both_sides_are_held_against_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    code, rows = held(monkeypatch, tmp_path, *CURVES)
    assert code == 0
    assert rows["held-out score before"] == 0.3
    assert rows["held-out score after 2 steps, TRL at a rate of 0.0003"] == 0.4
    assert rows["held-out score at the best rate, TRL"] == 0.5
    assert rows["held-out score at the best rate, streamrl"] == 0.8
    assert rows["rollouts to TRL's best score, streamrl over TRL"] == pytest.approx(512 * 2 / 3 / 1024)


def test_a_lower_score_than_the_peers_best_is_a_miss(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    worse = Curve("streamrl", 1e-3, (Point(0, 0.3), Point(1024, 0.48)))
    code, rows = held(monkeypatch, tmp_path, worse, SLOW, QUICK)
    assert code == 1
    assert "rollouts to TRL's best score, streamrl over TRL" not in rows


def test_the_picture_has_a_line_for_each_curve_and_says_what_it_is(tmp_path) -> None:
    draw(CURVES, tmp_path / "e2e.svg")
    text = (tmp_path / "e2e.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert all(f"{curve.side}, rate {curve.rate:g}" in text for curve in CURVES)
