"""The table of `bench_learning`: means over seeds for each task and setting, and what is wanted of them. Pure."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from report import Report
from rich.table import Table

from learning_study.curves import Point, Result, mean_curve
from learning_study.runs import DEFAULT, Setting, settings

JUDGED = Setting(4, DEFAULT)
TOLERATED = 0.02
"""What the score of `JUDGED` may fall short of the synchronous one; of a thousand items, about one standard error."""


class Line(NamedTuple):
    """One task under one setting, over all seeds.

    score, seconds: mean held-out score and mean seconds of the learner's loop at the end. spread: of the scores,
    largest less smallest. staleness: mean over trained rows, in steps. change: of the score against the synchronous
    runs of the same seeds; None where there are none, and for these themselves. curve: the mean of the runs' curves.
    """

    task: str
    setting: Setting
    score: float
    spread: float
    staleness: float
    seconds: float
    change: float | None
    curve: tuple[Point, ...]


def table_lines(results: Sequence[Result]) -> list[Line]:
    """One line for each task and setting, in order of the tasks as they come and of the settings."""
    synchronous = {(one.task, one.seed): one.score for one in results if not one.setting.staleness}
    lines = []
    for task in dict.fromkeys(one.task for one in results):
        of_task = [one for one in results if one.task == task]
        for setting in settings([one.setting.staleness for one in of_task]):
            if runs := [one for one in of_task if one.setting == setting]:
                lines.append(_line(runs, synchronous))
    return lines


def _line(runs: Sequence[Result], synchronous: dict[tuple[str, int], float]) -> Line:
    task, setting = runs[0].task, runs[0].setting
    scores = [one.score for one in runs]
    pairs = [(one.score, synchronous[task, one.seed]) for one in runs if (task, one.seed) in synchronous]
    return Line(
        task=task,
        setting=setting,
        score=fmean(scores),
        spread=max(scores) - min(scores),
        staleness=fmean(one.staleness for one in runs),
        seconds=fmean(one.curve[-1].seconds for one in runs),
        change=fmean(late - fresh for late, fresh in pairs) if pairs and setting.staleness else None,
        curve=mean_curve([one.curve for one in runs]),
    )


def add_rows(report: Report, lines: Sequence[Line]) -> None:
    """The figures of all lines, with what is wanted of the judged one."""
    for line in lines:
        name = f"{line.task}, {line.setting}"
        report.add(f"{name}: held-out score", line.score, "")
        report.add(f"{name}: spread over the seeds", line.spread, "")
        report.add(f"{name}: staleness of the rows, mean", line.staleness, "steps")
        report.add(f"{name}: the learner's loop", line.seconds, "s")
        if line.change is not None:
            at_least = -TOLERATED if line.setting == JUDGED else None
            report.add(f"{name}: score less that of staleness 0", line.change, "", at_least=at_least)


def as_table(lines: Sequence[Line]) -> Table:
    """For a reader: a row for each line; the age is the staleness that rows had."""
    columns = ("task", "bound", "correction", "age", "score", "spread", "against 0", "seconds")
    table = Table(*columns, title="held-out score after equal samples, mean over seeds")
    table.columns[0].no_wrap = table.columns[2].no_wrap = True
    for line in lines:
        table.add_row(
            line.task,
            str(line.setting.staleness),
            line.setting.correction if line.setting.staleness else "any",
            f"{line.staleness:.2f}",
            f"{line.score:.3f}",
            f"{line.spread:.3f}",
            "" if line.change is None else f"{line.change:+.3f}",
            f"{line.seconds:.1f}",
        )
    return table
