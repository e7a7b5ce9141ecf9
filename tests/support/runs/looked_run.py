"""A small run in a whole run folder, for tests that look inside: configuration, queue, checkpoints, metrics."""

import asyncio
import json
from pathlib import Path
from typing import Any

from support.runs.small_run import GROUP_SIZE, GROUPS_PER_STEP, STEPS, SmallRun

from streamrl.config import load_args
from streamrl.services.launch.claim import claim
from streamrl.services.run.folder import RunFolder

CONFIG = f"""
[model]
preset = "tiny-qwen3"
[rollout]
engine = "scripted"
group_size = {GROUP_SIZE}
[learner]
steps = {STEPS}
groups_per_step = {GROUPS_PER_STEP}
max_staleness = 1
"""


class Enough(Exception):
    """Ends a run where a test wants it."""


def run_folder(folder: Path) -> RunFolder:
    """A folder that was claimed and holds nothing yet."""
    path = folder / "run.toml"
    path.write_text(CONFIG)
    taken = claim(load_args(str(path), ["--runs", str(folder / "runs")]))
    assert taken.lock is not None
    taken.lock.abandon()
    return taken.run


def finished_run(folder: Path) -> RunFolder:
    """A run to its end, with a line of metrics a step, and the last score in a line of its own."""
    run = run_folder(folder)
    asyncio.run(SmallRun(run.path, lambda fact: None).to_the_end())
    lines: list[dict[str, Any]] = [{"step": step + 1, "loss/policy": step / 10} for step in range(STEPS)]
    lines.append({"step": STEPS, "eval/score": 0.5})
    run.metrics_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def interrupted_run(folder: Path, *, after: str, step: int) -> tuple[RunFolder, SmallRun]:
    """A run that ended by an error right after it had said so of this step, its segments not sealed."""
    run = run_folder(folder)

    def tell(fact: dict[str, Any]) -> None:
        if (fact["kind"], fact.get("step")) == (after, step):
            raise Enough

    small = SmallRun(run.path, tell)
    try:
        asyncio.run(small.to_the_end())
    except Enough:
        small.rest()
        return run, small
    raise AssertionError(f"the run never said {after} of step {step}")
