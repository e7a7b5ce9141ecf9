"""Builders for the tests of `make bench-learning`: lines of metrics, and results of runs that nobody made."""

from learning_study.curves import Point, Result
from learning_study.runs import Setting


def step_line(step: int, *, seconds: float, **more: object) -> dict[str, object]:
    """A line of `metrics.jsonl` as a learner's step makes it."""
    return {"step": step, "time/step": seconds, **more}


def scored(of: int, score: float) -> dict[str, object]:
    """What the line that is written next says of an evaluation of step `of`."""
    return {"eval/score": score, "eval/step": of}


def result(
    *,
    staleness: int,
    score: float,
    correction: str = "decoupled",
    task: str = "sums",
    seed: int = 0,
    seconds: float = 60.0,
    seen: float = 0.0,
) -> Result:
    curve = (Point(0, 0.0, 0.4), Point(300, seconds, score))
    return Result(task, seed, Setting(staleness, correction), score, seen, curve)
