"""What is exported is, byte by byte, what was published as that version and served."""

from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from peft import PeftModel
from safetensors import safe_open
from support.learner.probe_learner import built, change, with_experts
from transformers import AutoModelForCausalLM

from streamrl.config import dump
from streamrl.config.schema.learner import LearnerConfig, LoraConfig, OptimizerConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.errors import ConfigError
from streamrl.services.commands.exchange.export import export_newest
from streamrl.services.commands.exchange.hub import export as export_with_card
from streamrl.services.learner.core import LearnerCore
from streamrl.services.run.folder import RunFolder
from streamrl.storage.object_set import read_set
from streamrl.storage.open import open_store
from streamrl.storage.store import read
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


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")  # peft reads it
def test_adapters_that_peft_would_put_on_the_experts_are_refused_and_others_read_back(tmp_path: Path) -> None:
    """Of a model whose first layer is dense. peft takes the names of its MLP for those of the other layer's experts."""
    for name, targets in {"all": None, "attention": ("q_proj", "o_proj")}.items():
        lora = LoraConfig(rank=4, targets=targets)
        config = replace(
            config_of("float32", 4), learner=LearnerConfig(optimizer=OptimizerConfig(lr=0.1, warmup_steps=0), lora=lora)
        )
        config = with_experts(config, tmp_path, mlp_only_layers=[0])
        with built(config, tmp_path / name) as core:
            change(core)
            core.save()
        (tmp_path / name / "config.toml").write_text(dump(config))
    with pytest.raises(ConfigError, match=r"adapters on gate_proj, up_proj, down_proj, .*'qwen3_moe'.*format hf"):
        export_newest(RunFolder.open(tmp_path / "all"), tmp_path / "refused", "peft")
    assert not (tmp_path / "refused").exists()
    for layout in ("hf", "peft"):
        export_newest(RunFolder.open(tmp_path / "attention"), tmp_path / layout, layout)  # type: ignore[arg-type]
    ids = torch.arange(5)[None]
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")(ids, use_cache=False).logits
    base = AutoModelForCausalLM.from_pretrained(str(config.model.path))
    plain = base(ids, use_cache=False).logits
    read = PeftModel.from_pretrained(base, tmp_path / "peft")(ids, use_cache=False).logits
    assert (whole - plain).abs().max() > 1e-3
    assert (whole - read).abs().max() < 1e-5


def test_an_export_to_an_address_is_the_same_folder_there(tmp_path: Path) -> None:
    config = config_of("float32", 0)
    with built(config, tmp_path / "run") as core:
        core.save()
    run = RunFolder.open(tmp_path / "run")
    (run.path / "config.toml").write_text(dump(config))
    place = f"memory://{run.run_id}"
    assert export_with_card(run, f"{place}/model")["step"] == 0
    export_with_card(run, tmp_path / "here")
    store = open_store(place)
    there = {key.removeprefix("model/"): read(store, key) for key in store.list("model/")}
    assert there == {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    assert read_set(store, "model").facts == {"run": run.run_id, "step": 0}
    assert [path for path in run.path.iterdir() if path.name.startswith(".export")] == []
    store.put("theirs/x", [b"x"])
    with pytest.raises(ConfigError, match="was not written by streamrl"):
        export_with_card(run, f"{place}/theirs")
