"""Whole runs whose learner is two ranks of megatron-core, by `streamrl up`.

On a CPU, by gloo and a shim that reaches the ranks' processes by PYTHONPATH: none of it says anything of NCCL.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from peft import PeftModel
from support.queue.trained_groups import trained_groups
from support.repository import ROOT, TESTS
from support.runs.finished_run import Finished, run
from support.runs.live_run import LiveRun, live_run
from support.weights.adapted_model import IGNORED, apart, base_model, most_sampled
from transformers import AutoModelForCausalLM

ON_CPU = TESTS / "support" / "megatron" / "on_cpu"
MEGATRON = ("--learner.backend", "megatron", "--learner.num_workers", "2", "--rollout.replicas", "1")
LAYOUTS = {
    "tensor": ("--learner.megatron.tensor_parallel", "2"),
    "pipeline": ("--learner.megatron.tensor_parallel", "1", "--learner.megatron.pipeline_parallel", "2"),
}


STEPS = 24


@pytest.fixture(autouse=True, scope="module")
def on_cpu() -> Iterator[None]:
    path = filter(None, (str(ON_CPU), str(ROOT), os.environ.get("PYTHONPATH")))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join(path))
        yield


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


class Adapted(NamedTuple):
    """A run of adapters, one of whose ranks was killed, and which was stopped and brought up again. before: groups that
    had been trained when it was killed."""

    live: LiveRun
    stopped: tuple[int, str]
    before: list[int]
    again: Finished


@pytest.fixture(scope="module")
def adapted(user_folder: Path, streamrl_path: Path, on_cpu: None) -> Adapted:
    lora = ("--learner.lora.rank", "4", "--learner.lora.alpha", "16", "--learner.optimizer.lr", "1e-2")
    kept = ("--checkpoint.every", "4", "--checkpoint.keep", "9", "--eval.every", "1000")
    overrides = (*MEGATRON, *LAYOUTS["tensor"], *lora, *kept, "--learner.steps", str(STEPS))
    with live_run(user_folder, streamrl_path, "adapted", *overrides) as live:
        live.until_step(6)
        before = trained_groups(live.folder)
        live.actors("LearnerRank")[-1].send_signal(signal.SIGKILL)
        live.until_step(12)
        live.process.send_signal(signal.SIGINT)
        stopped = live.end()
    again = run(user_folder, "up", "base.toml", "--name", "adapted", *overrides, name="adapted")
    return Adapted(live, stopped, before, again)


def test_a_run_goes_on_when_a_rank_is_killed_and_when_it_is_up_again_and_trains_every_group_once(
    adapted: Adapted,
) -> None:
    code, err = adapted.stopped
    assert code == 130, err
    assert any("learner" in text and "died" in text for text in adapted.live.notices())
    assert adapted.again.code == 0, adapted.again.output
    assert not (adapted.again.folder / "failure.json").exists()
    trained = trained_groups(adapted.again.folder)
    assert sorted(set(trained)) == sorted(trained)
    assert len(trained) == STEPS * 8
    assert trained[: len(adapted.before)] == adapted.before


def test_what_a_run_publishes_is_to_the_bit_what_the_same_groups_make_without_a_break(
    adapted: Adapted, user_folder: Path
) -> None:
    done = run(user_folder, "replay", "adapted")
    assert done.code == 0, done.output
    told = f"{STEPS} steps again; weights equal to the bit after {STEPS}; largest difference 0\n"
    assert done.output.endswith(told), done.output


@pytest.mark.filterwarnings(IGNORED)
def test_replicas_sample_with_the_adapters_and_the_export_for_peft_is_the_model(
    adapted: Adapted, user_folder: Path, tmp_path: Path
) -> None:
    folder = adapted.again.folder
    found = apart(folder, tmp_path, most_sampled(folder, 8))
    assert found.rows >= 8
    assert found.adapted <= 1e-5
    assert found.base > 1e-2
    done = run(user_folder, "export", "adapted", "--to", str(tmp_path / "alone"), "--format", "peft")
    assert done.code == 0, done.output
    ids = torch.arange(3, 19).view(1, 16)
    with torch.no_grad():
        plain = base_model(folder)(ids).logits
        ours = PeftModel.from_pretrained(base_model(folder), tmp_path / "alone")(ids).logits
        whole = AutoModelForCausalLM.from_pretrained(folder / "export")(ids).logits
    assert (whole - plain).abs().max() > 1e-2
    assert (whole - ours).abs().max() <= 1e-5


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
