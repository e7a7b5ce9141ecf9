"""The reward curve of a run as a picture.

Guarantees: the file is a whole PNG or is not there; no display, window system or global matplotlib state is
used. matplotlib is imported only when a picture is made.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamrl.errors import DataError
from streamrl.observability.metrics import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMOOTHED_SHARE = 20
"""The smooth line is a running mean over a twentieth of the run."""

INK = "#1f2937"
GRID = "#e5e7eb"
REWARD = "#2563eb"
EVALUATION = "#c2410c"

Points = tuple[list[float], list[float]]


def reward_curve(metrics_path: Path, out_png: Path, title: str = "") -> None:
    """Draw reward/mean and eval/score against the step. Raises DataError when the metrics hold neither."""
    from matplotlib.figure import Figure  # heavy, and needed once a run

    lines = read_metrics(metrics_path)
    reward, evaluation = _points(lines, "reward/mean"), _points(lines, "eval/score")
    if not reward[0] and not evaluation[0]:
        raise DataError(f"{metrics_path} has no reward/mean and no eval/score: there is nothing to draw")
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    _draw_reward(axes, reward)
    _draw_evaluation(axes, evaluation)
    _dress(axes, title)
    fresh = out_png.with_name(out_png.name + ".tmp")
    figure.savefig(fresh, format="png")
    fresh.replace(out_png)


def smoothed(values: Sequence[float], width: int) -> npt.NDArray[np.float64]:
    """Mean of the last `width` values at each place, of as many as there are at the start."""
    sums = np.cumsum(np.asarray(values, dtype=np.float64))
    before = np.concatenate([np.zeros(min(width, len(sums))), sums[:-width]])
    means: npt.NDArray[np.float64] = (sums - before) / np.minimum(np.arange(1, len(sums) + 1), width)
    return means


def _points(lines: Sequence[dict[str, object]], key: str) -> Points:
    """Steps and values of the lines that have a number under `key`, in order of the steps."""
    found = [(line["step"], line[key]) for line in lines if isinstance(line.get(key), (int, float))]
    found.sort(key=lambda point: point[0])  # type: ignore[arg-type, return-value]
    return [float(step) for step, _ in found], [float(value) for _, value in found]  # type: ignore[arg-type]


def _draw_reward(axes: "Axes", points: Points) -> None:
    steps, values = points
    if not steps:
        return
    width = max(1, len(steps) // SMOOTHED_SHARE)
    if width > 1:
        axes.plot(steps, values, color=REWARD, alpha=0.25, linewidth=1)
    label = "training reward" + (f" (mean of {width} steps)" if width > 1 else "")
    axes.plot(steps, smoothed(values, width), color=REWARD, linewidth=2, label=label)


def _draw_evaluation(axes: "Axes", points: Points) -> None:
    steps, values = points
    if not steps:
        return
    axes.plot(steps, values, color=EVALUATION, linewidth=1, linestyle=":", marker="o", label="held-out score")
    place: dict[str, Any] = {"textcoords": "offset points", "color": EVALUATION, "fontsize": 9}
    paper: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 1}
    # Below the first point and above the last: a curve that rises leaves these places free.
    for at, offset, side in ((0, (6, -16), "left"), (-1, (0, 10), "right")):
        axes.annotate(f"{values[at]:.3f}", (steps[at], values[at]), offset, ha=side, bbox=paper, **place)


def _dress(axes: "Axes", title: str) -> None:
    axes.set_xlabel("step", color=INK)
    axes.set_title(title or "Reward", loc="left", color=INK, fontsize=12)
    axes.grid(axis="y", color=GRID)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, loc="lower right", labelcolor=INK)
