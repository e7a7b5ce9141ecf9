"""The quickstart on a real server of each engine, as its file says, to the score that it aims at."""

import json
from pathlib import Path

import pytest
from support.runs.finished_run import run

ROOT = Path(__file__).parents[2]
LIMIT_S = 900


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_model_learns_to_add_on_a_server_as_it_does_on_the_torch_engine(engine: str, tmp_path: Path) -> None:
    config = ROOT / f"configs/quickstart-{engine}.toml"
    python = ROOT / f".venvs/{engine}/bin/python"
    name = f"quickstart-{engine}"
    done = run(tmp_path, "up", str(config), "--rollout.server.python", str(python), name=name, limit_s=LIMIT_S)
    assert done.code == 0, done.output
    summary = done.summary()
    lines = map(json.loads, (done.folder / "metrics.jsonl").read_text().splitlines())
    scores = [line["eval/score"] for line in lines if "eval/score" in line]
    print(f"{engine}: {summary['eval_before']} -> {scores}, {summary['steps']} steps, {summary['wall_s']:.0f} s")
    assert summary["eval_before"] <= 0.6
    assert max(scores) >= 0.9
    assert summary["discards"] == 0
