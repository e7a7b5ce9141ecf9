"""Weights that are read by name: those of the model that transformers loads, and none where that would differ."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines.family_models import FAMILIES, SMALL, family_model
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from streamrl.engines.torch.families import describe, tensor_shapes
from streamrl.errors import ConfigError
from streamrl.models.load import load_model
from streamrl.models.plain_weights import PlainModel, read_plain


def made(kind: str, **changes: object) -> PreTrainedModel:
    if kind in FAMILIES:
        return family_model(kind, **changes)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SMALL, **changes}))


def written(folder: Path, kind: str = "qwen3", **changes: object) -> Path:
    made(kind, **changes).save_pretrained(folder)
    return folder


def plain(folder: Path, dtype: str = "float32") -> PlainModel | None:
    return read_plain(folder, dtype, lambda config: tensor_shapes(describe(config)))


def change(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Add a weight to the file, or take one away."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(name, None)
    save_file({**tensors, **({} if tensor is None else {name: tensor})}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_they_are_those_of_the_model_to_the_bit(kind: str, tied: bool, dtype: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "model", kind, tie_word_embeddings=tied)
    found = plain(folder, dtype)
    assert found is not None
    model = load_model(folder, dtype)
    expected = dict(model.named_parameters())
    assert found.tensors.keys() == expected.keys()
    assert all(torch.equal(found.tensors[name], weight) for name, weight in expected.items())
    assert all(found.tensors[name].dtype is weight.dtype for name, weight in expected.items())
    assert describe(found.config) == describe(model.config)


def test_shards_are_read_as_one_file_is(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    made("qwen3").save_pretrained(folder, max_shard_size="8KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    found = plain(folder)
    assert found is not None
    assert found.tensors.keys() == dict(load_model(folder, "float32").named_parameters()).keys()


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("lm_head.weight", torch.zeros(1)),
        ("model.norm.weight", None),
        ("model.norm.weight", torch.zeros(3)),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.zeros(2)),
    ],
)
def test_a_name_too_many_or_too_few_or_another_shape_is_left_to_transformers(
    name: str, tensor: torch.Tensor | None, tmp_path: Path
) -> None:
    folder = written(tmp_path / "model", tie_word_embeddings=True)
    assert plain(folder) is not None
    change(folder, name, tensor)
    assert plain(folder) is None


@pytest.mark.parametrize("kind", ["qwen3_moe", "gemma2"])
def test_so_are_weights_of_experts_and_of_other_families(kind: str, tmp_path: Path) -> None:
    assert plain(written(tmp_path / "model", kind)) is None


def test_a_file_that_is_cut_off_is_left_to_transformers_which_says_so(tmp_path: Path) -> None:
    folder = written(tmp_path / "model")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert plain(folder) is None
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(folder, "float32")


def test_a_folder_that_is_no_models_or_brings_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        plain(tmp_path / "nothing")
    folder = written(tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": {"AutoModel": "m.M"}}))
    with pytest.raises(ConfigError, match="brings its own Python code"):
        plain(folder)
