"""Servers of replicas that die in a run, as programs that speak vLLM's contract and have no model."""

import json
import signal
from pathlib import Path

import pytest
from fake_vllm_program import write_program
from support.queue.trained_groups import trained_groups
from support.runs.live_run import live_run

pytestmark = pytest.mark.ray


def on_server(program: Path) -> tuple[str, ...]:
    return ("--rollout.engine", "vllm", "--rollout.server.python", str(program), "--eval.every", "1000")


@pytest.mark.long
def test_a_server_that_is_killed_is_replaced_and_its_requests_are_answered_under_the_same_ids(
    user_folder: Path, streamrl_path: Path, tmp_path: Path
) -> None:
    program = write_program(tmp_path)
    with live_run(user_folder, streamrl_path, "server-killed", *on_server(program), "--learner.steps", "40") as run:
        run.until_step(5)
        run.below(lambda _, words: str(program) in words, "the server")[0].send_signal(signal.SIGKILL)
        code, err = run.end()
    assert code == 0, err
    (notice,) = [text for text in run.notices() if "restart" in text]
    assert "vllm: " in notice
    assert "its process ended with signal SIGKILL" in notice
    assert "restart 1 of 3" in notice
    groups = trained_groups(run.folder)
    assert len(groups) == len(set(groups)) == 40 * 8
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["discards"], summary["discards_by_reason"]) == (0, {})


@pytest.mark.long
def test_a_server_that_never_starts_ends_the_run_after_its_restarts_in_its_own_words(
    user_folder: Path, streamrl_path: Path, tmp_path: Path
) -> None:
    program = write_program(tmp_path, last_words="fp8 is not supported on this device")
    with live_run(user_folder, streamrl_path, "server-refuses", *on_server(program), "--rollout.replicas", "1") as run:
        code, err = run.end()
    assert code == 4
    assert "fp8 is not supported on this device" in err
    assert "it was started again 3 times" in err
    assert "Traceback" not in err
