"""A run that trains is evaluated with samples of another number, beside its own curve."""

import json
from pathlib import Path

import pytest
from support.runs.finished_run import run
from support.runs.live_run import live_run, prepare

pytestmark = [pytest.mark.ray, pytest.mark.long]
KEYS = ("--learner.steps", "400", "--rollout.replicas", "1", "--eval.every", "400", "--eval.max_items", "6")


def test_samples_of_the_held_out_items_are_beside_the_curve(tmp_path: Path, streamrl_path: Path) -> None:
    prepare(tmp_path)
    with live_run(tmp_path, streamrl_path, "sampled", *KEYS) as up:
        up.until_step(2)
        done = run(tmp_path, "eval", str(up.folder), "--k", "4", "--temperature", "0.9", "--json")
        assert done.code == 0, done.output
        told = json.loads(done.output)["held-out@4"]
        assert 0.0 <= told["avg@4"] <= told["pass@4"] <= 1.0
        assert told["step"] >= 1
        assert (told["samples"], told["temperature"]) == (4, 0.9)
        status = json.loads(run(tmp_path, "status", str(up.folder), "--json").output)
        assert status["evaluations"]["held-out@4"] == told
        code, error = up.end()
        assert code == 0, error
    summary = json.loads((up.folder / "summary.json").read_text())
    assert summary["evaluations"]["held-out@4"] == told
    lines = [json.loads(line) for line in (up.folder / "metrics.jsonl").read_text().splitlines()]
    assert not [line for line in lines if "eval/avg@4" in line]
    assert {line["eval/step"] for line in lines if "eval/score" in line} == {0, 400}
