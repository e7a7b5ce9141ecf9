"""A whole run on real vLLM servers, one of which is killed in the middle: the run goes on, and nothing is lost."""

import json
import signal
from pathlib import Path

import pytest
from support.engines.real_engines import Kind
from support.queue.trained_groups import trained_groups
from support.runs.live_run import live_run, prepare

VLLM = Kind("vllm")
STEPS = 30


@pytest.mark.skipif(not VLLM.python.exists(), reason="needs .venvs/vllm: make engines")
def test_a_server_that_is_killed_in_a_run_is_replaced_and_nothing_is_lost(tmp_path: Path, streamrl_path: Path) -> None:
    prepare(tmp_path)
    server = ("--rollout.engine", "vllm", "--rollout.server.python", str(VLLM.python), "--deadlines.start_s", "600")
    few = ("--rollout.replicas", "1", "--learner.steps", str(STEPS), "--eval.every", "1000")
    with live_run(tmp_path, streamrl_path, "killed", *server, *few) as run:
        run.until_step(5)
        launcher = "streamrl_vllm_launcher.py"
        first = run.below(lambda _, words: any(word.endswith(launcher) for word in words[:2]), "the server")[0]
        first.send_signal(signal.SIGKILL)
        code, err = run.end()
    assert code == 0, err
    assert any("signal SIGKILL" in text and "restart 1 of 3" in text for text in run.notices())
    groups = trained_groups(run.folder)
    assert len(groups) == len(set(groups)) == STEPS * 8
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["discards"] == 0
