"""Whole runs whose learner is two ranks of megatron-core, by `streamrl up`.

On a CPU, by gloo and a shim that reaches the ranks' processes by PYTHONPATH: none of it says anything of NCCL.
"""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from support.queue.trained_groups import trained_groups
from support.repository import ROOT, TESTS
from support.runs.finished_run import run
from support.runs.live_run import live_run

ON_CPU = TESTS / "support" / "megatron" / "on_cpu"
MEGATRON = ("--learner.backend", "megatron", "--learner.num_workers", "2", "--rollout.replicas", "1")
LAYOUTS = {
    "tensor": ("--learner.megatron.tensor_parallel", "2"),
    "pipeline": ("--learner.megatron.tensor_parallel", "1", "--learner.megatron.pipeline_parallel", "2"),
}


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    path = filter(None, (str(ON_CPU), str(ROOT), os.environ.get("PYTHONPATH")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


def test_a_run_with_a_critic_warms_up_and_trains_to_its_end_on_the_stages_of_a_pipeline(user_folder: Path) -> None:
    """The critic is made anew behind the warm-up."""
    valued = ("--learner.algorithm.advantage", "gae")
    overrides = ("--warmup.max_steps", "4", "--warmup.eval_every", "4", "--learner.steps", "4", "--eval.every", "4")
    done = run(
        user_folder,
        "up",
        "base.toml",
        "--name",
        "stages",
        *MEGATRON,
        *LAYOUTS["pipeline"],
        *valued,
        *overrides,
        name="stages",
    )
    assert done.code == 0, done.output
    assert [line["step"] for line in done.metrics()] == [1, 2, 3, 4]
    assert all(line["critic/loss"] > 0.0 for line in done.metrics())
    assert done.summary()["discards"] == 0
    assert (done.folder / "export" / "model.safetensors").exists()


def test_a_run_goes_on_by_itself_when_a_rank_is_killed_and_trains_every_group_once(
    user_folder: Path, streamrl_path: Path
) -> None:
    scripted = ("--rollout.engine", "scripted", "--eval.every", "1000")
    overrides = (*MEGATRON, *LAYOUTS["tensor"], *scripted, "--learner.steps", "24", "--checkpoint.every", "4")
    with live_run(user_folder, streamrl_path, "killed", *overrides) as live:
        live.until_step(6)
        before = trained_groups(live.folder)
        live.actors("LearnerRank")[-1].send_signal(signal.SIGKILL)
        code, err = live.end()
    assert code == 0, err
    assert any("learner" in text and "died" in text for text in live.notices())
    assert not (live.folder / "failure.json").exists()
    trained = trained_groups(live.folder)
    assert sorted(set(trained)) == sorted(trained)
    assert len(trained) == 24 * 8
    assert trained[: len(before)] == before


def test_a_run_whose_rank_hangs_ends_at_the_deadline_and_names_the_rank(user_folder: Path, streamrl_path: Path) -> None:
    """The rank stands still in a collective, or before the plan of the next step."""
    scripted = ("--rollout.engine", "scripted", "--eval.every", "1000")
    overrides = (*MEGATRON, *LAYOUTS["tensor"], *scripted, "--learner.steps", "1000", "--deadlines.step_s", "10")
    with live_run(user_folder, streamrl_path, "hangs", *overrides) as live:
        live.until_step(4)
        ranks = live.actors("LearnerRank")
        ranks[-1].send_signal(signal.SIGSTOP)
        code, err = live.end()
    assert code == 4, err
    told = re.search(
        r"learner-(\d): .*step \d+.* took longer than 10 s.*; the others wait for learner-(\d): no answer", err
    )
    assert told is not None, err
    assert told[1] != told[2]
    assert not any(rank.is_running() for rank in ranks)


@pytest.mark.long
@pytest.mark.timeout(960)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_quickstart_reaches_its_score(layout: str, tmp_path: Path) -> None:
    config, name = ROOT / "configs" / "quickstart-megatron.toml", "quickstart-megatron"
    done = run(tmp_path, "up", str(config), *LAYOUTS[layout], name=name, limit_s=900)
    assert done.code == 0, done.output
    summary = done.summary()
    lines = map(json.loads, (done.folder / "metrics.jsonl").read_text().splitlines())
    scores = [line["eval/score"] for line in lines if "eval/score" in line]
    print(f"{layout}: {summary['eval_before']} -> {max(scores)}, {summary['steps']} steps, {summary['wall_s']:.0f} s")
    assert summary["eval_before"] <= 0.6
    assert max(scores) >= 0.9
    assert summary["discards"] == 0
