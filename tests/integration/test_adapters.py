"""A run that trains adapters on a real Ray with the torch engine, its learner killed in the middle."""

import signal
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from support.runs.live_run import LiveRun, live_run
from support.weights.adapted_model import IGNORED, apart, base_model, logprobs
from transformers import AutoModelForCausalLM

from streamrl.services.commands.exchange.hub import export
from streamrl.services.commands.replay import replay
from streamrl.services.run.folder import RunFolder

pytestmark = [pytest.mark.ray, pytest.mark.long]

STEPS = 60
OVERRIDES = (
    *("--learner.lora.rank", "4", "--learner.lora.alpha", "16", "--learner.optimizer.lr", "1e-2"),
    *("--learner.steps", str(STEPS), "--checkpoint.every", "8", "--checkpoint.keep", "9", "--eval.every", "20"),
)


@pytest.fixture(scope="module")
def adapted(user_folder: Path, streamrl_path: Path) -> LiveRun:
    """A run whose learner died once, so that there were two incarnations and two bases."""
    with live_run(user_folder, streamrl_path, "adapted", *OVERRIDES) as run:
        run.until_step(10)
        run.actors("LearnerRank")[0].send_signal(signal.SIGKILL)
        code, err = run.end()
    assert code == 0, err
    return run


def test_a_learner_that_died_goes_on_with_its_adapters_and_every_version_is_small(adapted: LiveRun) -> None:
    steps = {event["step"]: event for event in adapted.steps()}
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert {event["version"].split(".")[0] for event in steps.values()} == {"0", "1"}
    model_bytes = sum(param.nbytes for param in base_model(adapted.folder).parameters())
    assert all(0 < event["weights/bytes"] < model_bytes / 10 for event in steps.values())
    # Nothing of it is left in shared memory.
    assert not list(Path("/dev/shm").glob(f"*{RunFolder.open(adapted.folder).run_id}*"))


def test_a_replay_makes_the_same_adapters_to_the_bit(adapted: LiveRun) -> None:
    steps = list(replay(RunFolder.open(adapted.folder)))
    assert len(steps) == STEPS
    assert all(step.same and step.difference == 0.0 for step in steps)


@pytest.mark.filterwarnings(IGNORED)
@pytest.mark.parametrize("step", [8, 48])
def test_the_engine_answers_with_the_log_probs_of_the_unmerged_model_that_is_trained(
    adapted: LiveRun, step: int, tmp_path: Path
) -> None:
    found = apart(adapted.folder, tmp_path, step)
    assert found.rows >= 8
    assert found.adapted <= 1e-5
    assert found.base > 1e-2


@pytest.mark.filterwarnings(IGNORED)
def test_the_export_of_a_finished_run_is_the_model_with_its_adapters(adapted: LiveRun, tmp_path: Path) -> None:
    run = RunFolder.open(adapted.folder)
    whole = AutoModelForCausalLM.from_pretrained(run.export_path)
    assert export(run, tmp_path / "alone", "peft")["step"] == STEPS
    assert export(run, tmp_path / "whole")["step"] == STEPS
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert all(torch.equal(again.get_parameter(name), param) for name, param in whole.named_parameters())
    loaded = PeftModel.from_pretrained(base_model(adapted.folder), tmp_path / "alone")
    ids = torch.arange(3, 19).view(1, 16)
    assert torch.allclose(logprobs(loaded, ids), logprobs(whole, ids), rtol=0, atol=1e-5)
