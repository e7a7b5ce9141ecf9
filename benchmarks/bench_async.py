"""Rollouts trained per second by the bound of staleness, under a heavy tail of lengths.

    make bench-async

Two replicas of 64 slots play completions of lognormal lengths (mean 8 tokens, sigma 1, at most 56), a token each 50 ms,
so the slots could end 320 a second; a real learner trains each batch. Staleness 0 is the run's own synchronous loop:
each batch is sampled whole, trained, and the replicas take up the new weights while nothing runs. Wanted: four steps of
staleness train at least three times as many. Writes benchmarks/out/async.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from report import Report

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs/quickstart.toml"
STREAMRL = Path(sys.executable).with_name("streamrl")
BOUNDS = (0, 1, 2, 4, 8)
REPLICAS, SLOTS, STEP_S = 2, 64, 0.05
GROUPS, GROUP_SIZE = 8, 8
SETTINGS: Mapping[str, str] = {
    "warmup.max_steps": "0",
    "rollout.engine": "scripted",
    "rollout.replicas": str(REPLICAS),
    "rollout.slots": str(SLOTS),
    "rollout.group_size": str(GROUP_SIZE),
    "rollout.sampling.max_new_tokens": "56",
    "rollout.scripted.latency_steps": "8",
    "rollout.scripted.heavy_tail": "1.0",
    "rollout.scripted.step_s": str(STEP_S),
    "learner.groups_per_step": str(GROUPS),
    "learner.lead": "none",
    "eval.max_items": "8",
    "eval.every": "100000",
    "checkpoint.every": "100000",
}
SYNCHRONOUS = {"rollout.update_mode": "drain"}
BEGINNING = 0.2
"""Share of the steps that fill the pipeline, which are not counted."""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=25.0, help="of each run, about")
    arguments.add_argument("--rounds", type=int, default=2)
    options = arguments.parse_args()
    report = Report("async")
    found: dict[int, list[tuple[float, float]]] = {bound: [] for bound in BOUNDS}
    for number in range(options.rounds):
        for bound in BOUNDS:
            rate, use = run(bound, options.seconds)
            found[bound].append((rate, use))
            print(f"round {number}, staleness {bound}: {rate:.0f} rollouts/s, slots used {use:.0%}", flush=True)
    rates = {bound: statistics.median(rate for rate, _ in seen) for bound, seen in found.items()}
    for bound, seen in found.items():
        report.add(f"rollouts trained per second, staleness {bound}", rates[bound], "1/s")
        report.add(f"slots that are sampling, staleness {bound}", statistics.median(use for _, use in seen), "")
    report.add("rollouts per second, staleness 1 over 0", rates[1] / rates[0], "x", at_least=1.5)
    report.add("rollouts per second, staleness 4 over 0", rates[4] / rates[0], "x", at_least=3.0)
    report.add("rollouts per second, staleness 8 over 0", rates[8] / rates[0], "x", at_least=3.0)
    return report.finish()


def run(bound: int, seconds: float) -> tuple[float, float]:
    """(rollouts trained per second, share of the slots' steps that sampled a token) of a run that is past its begin."""
    expected = 50.0 if bound == 0 else 200.0
    steps = max(10, int(seconds * expected / (GROUPS * GROUP_SIZE)))
    settings = {**SETTINGS, **(SYNCHRONOUS if bound == 0 else {})}
    settings |= {"learner.max_staleness": str(bound), "learner.steps": str(steps)}
    with tempfile.TemporaryDirectory(prefix="bench-async-") as folder:
        words = [word for key, value in settings.items() for word in (f"--{key}", value)]
        command = [STREAMRL, "up", CONFIG, "--name", "run", "--runs", folder, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        if done.returncode:
            raise SystemExit(f"the run with staleness {bound} ended with exit code {done.returncode}:\n{done.stderr}")
        lines = [json.loads(line) for line in (Path(folder) / "run/metrics.jsonl").read_text().splitlines()]
    return figures([line for line in lines if "time/step" in line])


def figures(lines: list[dict]) -> tuple[float, float]:
    """The same of the lines of metrics of all steps."""
    first = int(BEGINNING * len(lines))
    counted = lines[first + 1 :]
    seconds = sum(line["time/step"] for line in counted)
    tokens = counted[-1]["tokens/generated"] - lines[first]["tokens/generated"]
    return len(counted) * GROUPS * GROUP_SIZE / seconds, tokens * STEP_S / (seconds * REPLICAS * SLOTS)


if __name__ == "__main__":
    sys.exit(main())
