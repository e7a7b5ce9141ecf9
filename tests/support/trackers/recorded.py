"""A recorded list of metrics, and a run that trackers are told of."""

import json
from pathlib import Path
from typing import Any

from support.repository import TESTS

from streamrl.observability.trackers.base import TrackedRun

RECORDED = TESTS / "support/trackers/metrics.jsonl"
"""Of a real run of 8 steps of `configs/quickstart.toml`, with its scores."""


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RECORDED.read_text().splitlines()]


def tracked(folder: Path, **changes: Any) -> TrackedRun:
    """A run in `folder`, which has a configuration."""
    run = folder / "runs" / "small"
    run.mkdir(parents=True, exist_ok=True)
    facts = {
        "run_id": "0123456789ab",
        "name": "small",
        "project": "streamrl",
        "folder": str(run),
        "config": {"seed": 0, "learner": {"steps": 8, "optimizer": {"lr": 1e-3}}, "model": {"preset": "tiny-qwen3"}},
    }
    return TrackedRun(**{**facts, **changes})
