"""The table of `make bench-learning`: means over seeds, what is wanted of them, and the picture."""

from io import StringIO
from xml.etree import ElementTree

import pytest
from learning_study.picture import draw
from learning_study.runs import Setting
from learning_study.table import Line, add_rows, as_table, table_lines
from report import Report
from rich.console import Console
from support.learner.learning_results import result


def exit_code(monkeypatch, folder, results) -> int:
    """What the bench ends with, its record written into `folder`."""
    monkeypatch.setattr("report.figures.OUT", folder)
    report = Report("learning")
    add_rows(report, table_lines(results))
    return report.finish()


def test_a_line_is_the_mean_over_its_seeds():
    runs = [
        result(staleness=4, score=0.8, seed=0, seconds=50.0, seen=3.5),
        result(staleness=4, score=0.9, seed=1, seconds=70.0, seen=3.9),
    ]
    (line,) = table_lines(runs)
    assert line.score == pytest.approx(0.85)
    assert line.spread == pytest.approx(0.1)
    assert line.seconds == pytest.approx(60.0)
    assert line.staleness == pytest.approx(3.7)
    assert line.curve[-1].score == pytest.approx(0.85)


def test_a_score_is_held_against_the_synchronous_run_of_its_own_task_and_seed():
    runs = [
        result(staleness=0, score=0.9, seed=0),
        result(staleness=0, score=0.5, seed=1),
        result(staleness=4, score=0.4, seed=1),
        result(staleness=0, score=0.1, task="other", seed=1),
    ]
    changes = {(line.task, line.setting.staleness): line.change for line in table_lines(runs)}
    assert changes == {("sums", 0): None, ("sums", 4): pytest.approx(-0.1), ("other", 0): None}


def test_without_synchronous_runs_there_is_no_change_to_tell():
    (line,) = table_lines([result(staleness=4, score=0.8)])
    assert line.change is None


def test_tasks_keep_their_order_and_settings_come_by_bound_and_correction():
    runs = [
        result(staleness=8, score=0.5, task="late"),
        result(staleness=8, score=0.5, task="late", correction="plain"),
        result(staleness=1, score=0.5, task="late"),
        result(staleness=0, score=0.5, task="early"),
    ]
    assert [(line.task, str(line.setting)) for line in table_lines(runs)] == [
        ("late", "staleness 1, decoupled"),
        ("late", "staleness 8, plain"),
        ("late", "staleness 8, decoupled"),
        ("early", "staleness 0"),
    ]


@pytest.mark.parametrize(("late", "code"), [(0.885, 0), (0.875, 1), (0.99, 0)])
def test_at_staleness_4_the_default_may_lose_two_hundredths_and_gain_what_it_likes(tmp_path, monkeypatch, late, code):
    runs = [result(staleness=0, score=0.9), result(staleness=4, score=late)]
    assert exit_code(monkeypatch, tmp_path, runs) == code


def test_one_task_that_loses_is_enough(tmp_path, monkeypatch):
    runs = [
        result(staleness=staleness, score=score, task=task)
        for task, scores in {"first": (0.9, 0.9), "second": (0.9, 0.8)}.items()
        for staleness, score in zip((0, 4), scores, strict=True)
    ]
    assert exit_code(monkeypatch, tmp_path, runs) == 1


@pytest.mark.parametrize(("staleness", "correction"), [(4, "plain"), (4, "tis"), (8, "decoupled")])
def test_nothing_is_wanted_of_other_corrections_and_bounds(tmp_path, monkeypatch, staleness, correction):
    runs = [result(staleness=0, score=0.9), result(staleness=staleness, score=0.2, correction=correction)]
    assert exit_code(monkeypatch, tmp_path, runs) == 0


def test_the_table_shows_bound_correction_and_change():
    runs = [result(staleness=0, score=0.9), result(staleness=4, score=0.85, correction="plain", seen=3.46)]
    console = Console(width=120, record=True, file=StringIO())
    console.print(as_table(table_lines(runs)))
    synchronous, late = (row for row in console.export_text().splitlines() if "sums" in row)
    assert "0.900" in synchronous
    for cell in ("4", "plain", "3.46", "0.850", "-0.050"):
        assert cell in late


def test_the_picture_has_every_setting_and_task(tmp_path):
    lines: list[Line] = table_lines(
        [
            result(staleness=staleness, score=0.9, task=task, correction=correction)
            for task in ("sums", "other")
            for staleness, correction in ((0, "decoupled"), (4, "plain"), (4, "tis"))
        ]
    )
    path = tmp_path / "learning.svg"
    draw(lines, path)
    comments = path.read_text()
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    for text in ("sums", "other", str(Setting(0, "decoupled")), str(Setting(4, "plain")), str(Setting(4, "tis"))):
        assert f"<!-- {text} -->" in comments
