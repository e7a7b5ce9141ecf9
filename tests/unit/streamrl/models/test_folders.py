"""Models as folders: the same weights everywhere, whole or refused, and an export that loads like any other model."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from streamrl.config.schema.run import ModelConfig
from streamrl.errors import ConfigError, DataError, NonFiniteError
from streamrl.models.export import export_hf
from streamrl.models.folders import MARK
from streamrl.models.load import build_model, load_model, prepare_model_folder

TINY = ModelConfig(preset="tiny-qwen3")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_model_folder(TINY, 0, tmp_path_factory.mktemp("models") / "model")


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(prepared, tmp_path / "model")
    return tmp_path / "model"


def weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in model.named_parameters()}


def assert_equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def changed(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Weights as after some training; the tied head comes along under its own name."""
    tensors = {name: tensor + 0.5 for name, tensor in weights(model).items()}
    return {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}


def test_the_preset_is_the_model_of_the_quickstart() -> None:
    model = build_model(TINY, 0)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert sum(tensor.numel() for tensor in model.parameters()) == 396_800
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.training


def test_a_seed_decides_the_weights_and_leaves_the_callers_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = weights(build_model(TINY, 7))
    assert torch.equal(torch.rand(3), expected)
    assert_equal(first, weights(build_model(TINY, 7)))
    other = weights(build_model(TINY, 8))
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_a_bfloat16_preset_is_the_rounded_float32_one() -> None:
    rounded = {name: tensor.bfloat16() for name, tensor in weights(build_model(TINY, 0)).items()}
    assert_equal(rounded, weights(build_model(ModelConfig(preset="tiny-qwen3", dtype="bfloat16"), 0)))


def test_a_prepared_folder_holds_the_model_for_every_process(prepared: Path) -> None:
    assert_equal(weights(load_model(prepared, "float32")), weights(build_model(TINY, 0)))
    again = prepare_model_folder(ModelConfig(path=str(prepared)), 3, prepared.parent / "unused")
    assert again == prepared.resolve()
    assert not (prepared.parent / "unused").exists()
    assert_equal(weights(build_model(ModelConfig(path=str(prepared)), 9)), weights(build_model(TINY, 0)))


def test_a_folder_is_prepared_once_and_not_for_another_seed(prepared: Path) -> None:
    before = (prepared / "model.safetensors").stat().st_mtime_ns
    assert prepare_model_folder(TINY, 0, prepared) == prepared
    assert (prepared / "model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"'seed': 0.*'seed': 1"):
        prepare_model_folder(TINY, 1, prepared)
    assert [path.name for path in prepared.parent.iterdir()] == [prepared.name]


def test_a_model_that_is_not_there_or_not_whole_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load_model(folder / "nowhere", "float32")
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if "norm" not in k}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="weights under missing keys"):
        load_model(folder, "float32")
    norm = "model.norm.weight"
    save_file({**tensors, norm: tensors[norm][:5].clone()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(folder, "float32")
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(folder, "float32")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"no \.safetensors file"):
        load_model(folder, "float32")
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_model(folder, "float32")


def test_a_model_that_brings_code_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Evil"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="its own Python code"):
        load_model(folder, "float32")


def test_neither_preset_nor_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="neither a preset nor a path"):
        build_model(ModelConfig(), 0)


@pytest.mark.parametrize("shard_bytes", [2**30, 200_000])
def test_an_export_loads_as_a_whole_with_the_new_weights(prepared: Path, tmp_path: Path, shard_bytes: int) -> None:
    tensors = changed(load_model(prepared, "float32"))
    out = export_hf(iter(tensors.items()), prepared, tmp_path / "deep" / "export", shard_bytes=shard_bytes)
    shards = list(out.glob("*.safetensors"))
    assert (len(shards) > 1) == (shard_bytes == 200_000)
    model = AutoModelForCausalLM.from_pretrained(out)
    tied = tensors.pop("lm_head.weight")
    assert_equal(weights(model), tensors)
    assert torch.equal(model.lm_head.weight, tied)
    assert model.dtype == torch.float32
    assert (model.generation_config.bos_token_id, model.generation_config.eos_token_id) == (1, 2)
    assert AutoTokenizer.from_pretrained(out)("1+1=").input_ids == [1, 4, 13, 4, 16]


def test_an_export_says_in_which_format_its_weights_are(prepared: Path, tmp_path: Path) -> None:
    tensors = {name: tensor.bfloat16() for name, tensor in weights(load_model(prepared, "float32")).items()}
    out = export_hf(tensors, prepared, tmp_path / "export")
    assert AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype == torch.bfloat16


def test_an_export_carries_no_code_and_no_mark_of_its_source(folder: Path, tmp_path: Path) -> None:
    (folder / "modeling.py").write_text("raise SystemExit")
    (folder / "generation_config.json").unlink()
    out = export_hf(weights(load_model(folder, "float32")), folder, tmp_path / "export")
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        MARK,
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == 2
    assert json.loads((out / MARK).read_text()) == {"export": True}


def test_an_export_replaces_an_earlier_one_and_nothing_else(prepared: Path, tmp_path: Path) -> None:
    model = load_model(prepared, "float32")
    out = tmp_path / "export"
    export_hf(weights(model), prepared, out)
    export_hf(changed(model), prepared, out)
    assert float(load_file(out / "model.safetensors")["model.norm.weight"][0]) == 1.5
    own = tmp_path / "own"
    own.mkdir()
    (own / "thesis.txt").write_text("irreplaceable")
    with pytest.raises(ConfigError, match="was not written by streamrl"):
        export_hf(weights(model), prepared, own)
    assert (own / "thesis.txt").read_text() == "irreplaceable"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export", "own"]


def test_invariant_12_weights_that_are_not_finite_or_not_whole_are_never_exported(
    prepared: Path, tmp_path: Path
) -> None:
    good = weights(load_model(prepared, "float32"))
    name = "model.layers.1.mlp.up_proj.weight"
    spoiled = good[name].clone()
    spoiled[3, 3] = float("nan")
    cases = [
        ({**good, name: spoiled}, NonFiniteError, name),
        ({**good, name: good[name][:1]}, DataError, "has shape"),
        ({**good, "extra": good[name]}, DataError, "extra is no weight"),
        ({key: tensor for key, tensor in good.items() if key != name}, DataError, f"1 weights are missing, {name}"),
    ]
    for tensors, error, message in cases:
        with pytest.raises(error, match=message):
            export_hf(tensors, prepared, tmp_path / "export")
        assert list(tmp_path.iterdir()) == []
