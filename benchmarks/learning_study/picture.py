"""The curves of `bench_learning` as a picture: a row for each task, against steps on the left and seconds on the right.

The colour says how old rows may be, the dashes what is done about it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from learning_study.runs import DEFAULT
from learning_study.table import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#111827", "#2563eb", "#059669", "#d97706", "#dc2626", "#7c3aed")
"""Of the bounds, in their order; beyond them the last."""
DASHES = {DEFAULT: "-", "tis": "--", "plain": ":"}


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the picture; the end of `path` says in which format."""
    tasks = list(dict.fromkeys(line.task for line in lines))
    figure = Figure(figsize=(14, 4.5 * len(tasks)), layout="constrained")
    panels = figure.subplots(len(tasks), 2, squeeze=False, sharey="row")
    for task, (by_step, by_time) in zip(tasks, panels, strict=True):
        of_task = [line for line in lines if line.task == task]
        _panel(by_step, of_task, "step")
        _panel(by_time, of_task, "seconds")
        by_step.set_title(task, loc="left")
        by_step.set_ylabel("held-out score")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside right center")
    figure.savefig(path)


def _panel(axes: "Axes", lines: Sequence[Line], against: str) -> None:
    bounds = sorted({line.setting.staleness for line in lines})
    for line in lines:
        colour = COLOURS[min(bounds.index(line.setting.staleness), len(COLOURS) - 1)]
        places = [getattr(point, against) for point in line.curve]
        scores = [point.score for point in line.curve]
        dashes = DASHES[line.setting.correction]
        axes.plot(places, scores, color=colour, linestyle=dashes, linewidth=1.5, label=str(line.setting))
    axes.set_xlabel(against)
    axes.grid(axis="y", alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
