"""What the learner commits of 8-bit moments, and the proof that a resumed one holds them."""

from pathlib import Path

import pytest
import torch
from support.learner.probe_learner import STEPS, built, learn

from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import CheckpointConfig, Config, ModelConfig
from streamrl.errors import DataError
from streamrl.learner.checkpoint.checkpoint import CheckpointInfo, find_newest
from streamrl.learner.checkpoint.digest import tensor_digest
from streamrl.learner.optim.moments import MOMENTS

pytest.importorskip("torchao", reason="pip install -e '.[low-bit]'")

CONFIG = Config(
    model=ModelConfig(preset="tiny-qwen3"),
    learner=LearnerConfig(steps=STEPS, optimizer=OptimizerConfig(kind="adamw_8bit", lr=1e-3, warmup_steps=1)),
    checkpoint=CheckpointConfig(keep=1),
)


def newest(folder: Path) -> CheckpointInfo:
    info = find_newest(folder / "checkpoints").newest
    assert info is not None
    return info


def saved_digests(folder: Path) -> dict[str, str]:
    return {name: digest for entry in newest(folder).manifest.files for name, digest in entry.tensors.items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with the checkpoint of three steps."""
    folder = tmp_path_factory.mktemp("trained")
    learn(CONFIG, folder)
    return folder


def test_a_checkpoint_holds_codes_and_scales_and_a_resumed_learner_those(trained: Path) -> None:
    saved = saved_digests(trained)
    assert {name.partition("/")[0] for name in saved} == {"model", *MOMENTS, *(f"{kind}_scale" for kind in MOMENTS)}
    with built(CONFIG, trained) as core:
        assert {name: tensor_digest(tensor) for name, tensor in core._backend.state_tensors()} == saved
        assert core.state_bytes() == sum(tensor.nbytes for _, tensor in core._backend.state_tensors())
    held = {name: newest(trained).tensor(name) for name in saved if name.startswith("exp_avg")}
    matrices = [tensor for tensor in held.values() if tensor.dtype == torch.uint8]
    assert sum(tensor.numel() for tensor in matrices) > 0.99 * 2 * sum(
        newest(trained).tensor(name).numel() for name in saved if name.startswith("model/")
    )


@pytest.mark.parametrize("kind", ["exp_avg", "exp_avg_scale", "exp_avg_sq", "exp_avg_sq_scale"])
def test_a_tensor_that_is_lost_on_its_way_into_the_learner_is_named(
    kind: str, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = next(name for name in saved_digests(trained) if name.startswith(f"{kind}/"))
    real = CheckpointInfo.tensor

    def losing(info: CheckpointInfo, name: str) -> torch.Tensor:
        tensor = real(info, name)
        return torch.zeros_like(tensor) if name == lost else tensor

    monkeypatch.setattr(CheckpointInfo, "tensor", losing)
    with pytest.raises(DataError, match=rf"1 tensors .*the first of them {lost}"), built(CONFIG, trained):
        pass
