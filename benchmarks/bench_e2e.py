"""streamrl against TRL's GRPOTrainer: same warm model, task, prompts and batch, each side at the best of three rates.

    make bench-e2e
    make bench-e2e ARGS='--rounds 1 --rates 1e-4'

First one training of each side at each rate, with the held-out score on the way: the best rate is the one that ends
highest. Then trainings of both sides in turns, each at its best rate, without evaluations: the rollouts per second.
Wanted: at least as many as TRL, at no lower held-out score for equal samples. Both sides have both cores; starting up,
loading and warming up are in no figure. Writes benchmarks/out/e2e.json and benchmarks/out/e2e.svg.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

from e2e_parts.curves import Curve, best_of, rollouts_to
from e2e_parts.picture import draw
from e2e_parts.sides import Sides
from report import OUT, Report

RATES = (3e-5, 1e-4, 3e-4)
NOISE = 0.015
"""To which the score of one model on 1,000 held-out items is known."""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=150)
    arguments.add_argument("--points", type=int, default=10, help="scores of a training, the first one aside")
    arguments.add_argument("--rates", type=float, nargs="+", default=RATES)
    arguments.add_argument("--rounds", type=int, default=3, help="pairs of trainings for the speed")
    options = arguments.parse_args()
    sides, report = Sides(OUT / "e2e", options.steps), Report("e2e")
    curves = learn(sides, options.rates, every=options.steps // options.points)
    draw(curves, OUT / "e2e.svg")
    ours, theirs = best_of(curves, "streamrl"), best_of(curves, "TRL")
    rounds = race(sides, ours.rate, theirs.rate, options.rounds)
    add_speeds(report, rounds)
    add_scores(report, curves, options.steps)
    return report.finish()


def learn(sides: Sides, rates: Sequence[float], every: int) -> list[Curve]:
    """A training of each side at each rate, in turns."""
    curves = []
    for rate in rates:
        for train in (sides.streamrl_curve, sides.trl_curve):
            curves.append(train(rate, every))
            print(f"{curves[-1].side} at {rate:g}: held-out score {curves[-1].score:.3f}", flush=True)
    return curves


def race(sides: Sides, our_rate: float, their_rate: float, rounds: int) -> list[tuple[dict, dict]]:
    """Trainings of both sides in turns."""
    pairs = []
    for number in range(rounds):
        ours, theirs = sides.streamrl(our_rate), sides.trl(their_rate)
        pairs.append((ours, theirs))
        speeds = f"streamrl {ours['rollouts_per_s']:.0f}/s, TRL {theirs['rollouts_per_s']:.0f}/s"
        print(f"round {number}: {speeds}", flush=True)
    return pairs


def add_speeds(report: Report, rounds: Sequence[tuple[dict, dict]]) -> None:
    ours = statistics.median(one["rollouts_per_s"] for one, _ in rounds)
    theirs = statistics.median(one["rollouts_per_s"] for _, one in rounds)
    ratio = statistics.median(a["rollouts_per_s"] / b["rollouts_per_s"] for a, b in rounds)
    report.add("rollouts trained per second, streamrl", ours, "1/s")
    report.add(f"rollouts trained per second, TRL {rounds[0][1]['trl']}", theirs, "1/s")
    report.add("ratio, median of rounds", ratio, "x", at_least=1.0)
    report.add("the same, hoped for 1.5", ratio, "x")
    report.add("staleness, mean", statistics.median(one["staleness_mean"] for one, _ in rounds), "steps")
    report.add("learner waits, share", statistics.median(one["learner_wait_share"] for one, _ in rounds), "")


def add_scores(report: Report, curves: Sequence[Curve], steps: int) -> None:
    report.add("held-out score before", curves[0].points[0].score, "")
    for curve in curves:
        report.add(f"held-out score after {steps} steps, {curve.side} at a rate of {curve.rate:g}", curve.score, "")
    ours, theirs = best_of(curves, "streamrl"), best_of(curves, "TRL")
    report.add("held-out score at the best rate, TRL", theirs.score, "")
    report.add("held-out score at the best rate, streamrl", ours.score, "", at_least=theirs.score - NOISE)
    needed = rollouts_to(ours.points, theirs.score)
    if needed is not None:
        report.add("rollouts to TRL's best score, streamrl over TRL", needed / theirs.points[-1].rollouts, "x")


if __name__ == "__main__":
    sys.exit(main())
