"""A run that trains adapters on a real Ray with the torch engine, its learner killed in the middle."""

import signal
from pathlib import Path

import pytest
import torch
from live_run import LiveRun, live_run
from peft import PeftModel
from transformers import AutoModelForCausalLM

from buffers.queue import COMPLETIONS_DIR
from buffers.segment_reader import SegmentReader
from services.commands import export
from services.replay import replay
from services.run_folder import RunFolder
from streamrl.learner.checkpoint import verify

pytestmark = pytest.mark.ray

STEPS = 60
OVERRIDES = (
    *("--learner.lora.rank", "4", "--learner.lora.alpha", "16", "--learner.optimizer.lr", "1e-2"),
    *("--learner.steps", str(STEPS), "--checkpoint.every", "8", "--checkpoint.keep", "9", "--eval.every", "20"),
)
# peft 0.21 reads an attribute that transformers 5.23 calls by another name.
IGNORED = "ignore:.*is_gradient_checkpointing.*:FutureWarning"


@pytest.fixture(scope="module")
def adapted(user_folder: Path, streamrl_path: Path) -> LiveRun:
    """A run whose learner died once, so that there were two incarnations and two bases."""
    with live_run(user_folder, streamrl_path, "adapted", *OVERRIDES) as run:
        run.until_step(10)
        run.actors("LearnerRank")[0].send_signal(signal.SIGKILL)
        code, err = run.end()
    assert code == 0, err
    return run


def model_of(run: LiveRun) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(run.folder / "model")


def completions(folder: Path) -> list[dict]:
    reader = SegmentReader(folder)
    paths = sorted((folder / COMPLETIONS_DIR).glob("*.arrow"))
    frames = [frame for path in paths for frame in reader.scan(str(path.relative_to(folder)))]
    return [row for frame in frames for row in reader.read(frame).to_pylist()]


def test_a_learner_that_died_goes_on_with_its_adapters_and_every_version_is_small(adapted: LiveRun) -> None:
    steps = {event["step"]: event for event in adapted.steps()}
    assert sorted(steps) == list(range(1, STEPS + 1))
    assert {event["version"].split(".")[0] for event in steps.values()} == {"0", "1"}
    model_bytes = sum(param.nbytes for param in model_of(adapted).parameters())
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
    run = RunFolder.open(adapted.folder)
    export(run, tmp_path / "newest", "peft")
    model = PeftModel.from_pretrained(model_of(adapted), tmp_path / "newest")
    trained = verify(adapted.folder / "checkpoints" / f"step_{step:06d}")
    with torch.no_grad():
        for name, param in model.named_parameters():
            if ".lora_" in name:
                name = name.removeprefix("base_model.model.").replace(".default.", ".")
                param.copy_(trained.tensor(f"model/{name}"))
    rows = [row for row in completions(adapted.folder) if {span["step"] for span in row["version_spans"]} == {step}]
    assert len(rows) >= 8
    moved = 0.0
    for row in rows[:16]:
        ids, sampled = torch.tensor([row["token_ids"]]), torch.tensor(row["token_origin"][1:]) == 1
        logged = torch.tensor(row["rollout_logprobs"][1:])[sampled]
        with torch.no_grad():
            mine = logprobs(model, ids)[sampled]
            with model.disable_adapter():
                moved = max(moved, float((logprobs(model, ids)[sampled] - logged).abs().max()))
        assert torch.allclose(mine, logged, rtol=0, atol=1e-5)
    assert moved > 1e-2


def logprobs(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    return model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]


@pytest.mark.filterwarnings(IGNORED)
def test_the_export_of_a_finished_run_is_the_model_with_its_adapters(adapted: LiveRun, tmp_path: Path) -> None:
    run = RunFolder.open(adapted.folder)
    whole = AutoModelForCausalLM.from_pretrained(run.export_path)
    assert export(run, tmp_path / "alone", "peft")["step"] == STEPS
    assert export(run, tmp_path / "whole")["step"] == STEPS
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert all(torch.equal(again.get_parameter(name), param) for name, param in whole.named_parameters())
    adapted_model = PeftModel.from_pretrained(model_of(adapted), tmp_path / "alone")
    ids = torch.arange(3, 19).view(1, 16)
    with torch.no_grad():
        assert torch.allclose(logprobs(adapted_model, ids), logprobs(whole, ids), rtol=0, atol=1e-5)
