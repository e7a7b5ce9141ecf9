"""What a finished run of `bench_learning` came to, read from its folder, and the mean of several. Starts nothing."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from learning_study.runs import Run, Setting
from streamrl.errors import DataError
from streamrl.observability.metrics import STANDS_FOR, read_metrics, read_summary


class Point(NamedTuple):
    """A held-out score. step: the version's. seconds: of the learner's loop until that version, its waits included."""

    step: int
    seconds: float
    score: float


class Result(NamedTuple):
    """One run. staleness: mean over trained rows, in steps. curve: in order of the steps."""

    task: str
    seed: int
    setting: Setting
    score: float
    staleness: float
    curve: tuple[Point, ...]


def read_result(run: Run, folder: Path) -> Result:
    """The result of the finished run in `folder`. Raises DataError for a run without a summary or a last score."""
    summary = read_summary(folder / "summary.json")
    if summary is None or summary.eval_after is None or run.setting is None:
        raise DataError(f"{folder} has no score of a finished run; remove the folder, and the run is made again")
    curve = curve_of(read_metrics(folder / "metrics.jsonl"))
    return Result(run.task, run.seed, run.setting, summary.eval_after, summary.staleness_mean, curve)


def curve_of(lines: Sequence[Mapping[str, Any]]) -> tuple[Point, ...]:
    """The held-out scores in the lines of a `metrics.jsonl`. A score stands in the line that was written next, under
    `eval/step` with the step that it is of."""
    trained = [line for line in lines if "time/step" in line]
    steps = [line["step"] for line in trained]
    seconds = [0.0, *accumulate(line["time/step"] * line.get(STANDS_FOR, 1) for line in trained)]
    scores = {line["eval/step"]: line["eval/score"] for line in lines if line.get("eval/score") is not None}
    return tuple(Point(step, seconds[bisect_right(steps, step)], scores[step]) for step in sorted(scores))


def mean_curve(curves: Sequence[Sequence[Point]]) -> tuple[Point, ...]:
    """Mean seconds and mean score at each step that all curves have: an evaluation that takes longer than the steps to
    the next one leaves a point out."""
    by_step = [{point.step: point for point in curve} for curve in curves]
    shared = set.intersection(*(set(points) for points in by_step)) if by_step else set()
    return tuple(
        Point(step, fmean(one[step].seconds for one in by_step), fmean(one[step].score for one in by_step))
        for step in sorted(shared)
    )
