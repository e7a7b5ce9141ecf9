"""The curves of `bench_e2e` as a picture: a colour for each side, its best rate in a full line, the others dashed."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from e2e_parts.curves import Curve, best_of

COLOURS = ("#2563eb", "#d97706", "#059669")
"""Of the sides, in the order in which they come."""


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Write the picture; the end of `path` says in which format."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for side, colour in zip(dict.fromkeys(curve.side for curve in curves), COLOURS, strict=False):
        best = best_of(curves, side)
        for curve in (one for one in curves if one.side == side):
            width, dashes = (2.2, "-") if curve is best else (1.0, "--")
            rollouts, scores = zip(*curve.points, strict=True)
            axes.plot(rollouts, scores, dashes, color=colour, linewidth=width, label=f"{side}, rate {curve.rate:g}")
    axes.set_xlabel("rollouts trained")
    axes.set_ylabel("held-out score")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
    figure.savefig(path)
