"""The quickstart with a tool, as a user runs it: it learns to call the calculator."""

import json
from pathlib import Path

import pytest
from support.repository import ROOT
from support.runs.finished_run import run

pytestmark = [pytest.mark.ray, pytest.mark.long]


def test_it_learns_to_use_the_calculator(tmp_path: Path) -> None:
    limits = ["--eval.max_items", "200", "--name", "test"]
    done = run(tmp_path, "up", str(ROOT / "configs/tools-quickstart.toml"), *limits, limit_s=600.0)
    assert done.code == 0, done.output
    scores = [json.loads(line) for line in (done.folder / "metrics.jsonl").read_text().splitlines()]
    held_out = [line["eval/score"] for line in scores if "eval/score" in line]
    assert held_out[0] <= 0.4
    assert held_out[-1] >= 0.8
