"""What is exported is, byte by byte, what was published as that version and served."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.learner.probe_learner import built, change

from streamrl.config import dump
from streamrl.config.schema.learner import LearnerConfig, LoraConfig, OptimizerConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.services.commands.exchange.export import export_newest
from streamrl.services.learner.core import LearnerCore
from streamrl.services.run.folder import RunFolder
from streamrl.weights.served import ServedVersions


def config_of(dtype: str, rank: int) -> Config:
    learner = LearnerConfig(optimizer=OptimizerConfig(lr=1e-2, warmup_steps=1), lora=LoraConfig(rank=rank))
    return Config(model=ModelConfig(preset="tiny-qwen3", dtype=dtype), learner=learner)  # type: ignore[arg-type]


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def exported(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= {name: bytes_of(file.get_tensor(name)) for name in list(file.keys())}
    return found


def served(core: LearnerCore) -> dict[str, bytes]:
    written = core.publish(core.snapshot_weights())
    assert written is not None
    with ServedVersions(core._run.run_id, core._run.key()).open(written.manifest) as tensors:
        return {name: bytes_of(tensor) for name, tensor in tensors.items()}


@pytest.mark.parametrize("rank", [0, 4], ids=["whole weights", "adapters"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_export_has_the_bytes_of_the_version(tmp_path: Path, dtype: str, rank: int) -> None:
    config = config_of(dtype, rank)
    with built(config, tmp_path / "run") as core:
        before = served(core)
        change(core)
        core.save()
        version = served(core)
        core.export()
        run = RunFolder.open(tmp_path / "run")
        assert exported(run.export_path) == version
    (run.path / "config.toml").write_text(dump(config))
    assert export_newest(run, tmp_path / "later") == 1
    assert exported(tmp_path / "later") == version != before
