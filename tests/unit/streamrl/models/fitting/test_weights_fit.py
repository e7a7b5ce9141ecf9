"""What a check reads of a folder's weights, their names and shapes, against what config.json makes a model of."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines.family_models import FAMILIES, family_model
from support.engines.real_models import write_model

from streamrl.errors import ConfigError
from streamrl.models.classifier import write_classifier
from streamrl.models.fitting.weights_fit import require_fitting_weights
from streamrl.models.load import load_model


def edit(folder: Path, **changed: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def refusal(folder: Path, *, scores: bool = False) -> str:
    with pytest.raises(ConfigError) as told:
        require_fitting_weights(folder, scores=scores)
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_whole_model_of_each_family_fits_and_one_with_another_vocabulary_does_not(kind: str, tmp_path: Path) -> None:
    model = family_model(kind)
    model.save_pretrained(tmp_path)
    require_fitting_weights(tmp_path)
    rows, columns = model.get_input_embeddings().weight.shape
    edit(tmp_path, vocab_size=rows + 8)
    assert re.search(rf"embed\S* is {rows} x {columns} and should be {rows + 8} x {columns}", refusal(tmp_path))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a folder of one file."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_family_fits_when_it_is_saved_in_shards_with_its_embedding_tied_too(kind: str, tmp_path: Path) -> None:
    family_model(kind, tie_word_embeddings=True).save_pretrained(tmp_path, max_shard_size="60KB")
    assert not (tmp_path / "model.safetensors").exists()
    require_fitting_weights(tmp_path)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (16,)),  # of old checkpoints
        ("v_head.summary.weight", (1, 128)),
        ("v_head.summary.bias", (1,)),
        ("mtp.layers.0.input_layernorm.weight", (128,)),
        ("model.layers.2.mlp.up_proj.weight", (384, 128)),  # a layer more than config.json says
        ("lm_head.weight", (22, 128)),  # of a tied model
    ],
)
def test_tensors_that_the_model_has_no_use_for_are_left_alone(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", 0)
    rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    load_model(folder, "float32")
    require_fitting_weights(folder)


def test_a_tied_embedding_may_be_there_by_its_other_name(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", 0)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors.pop("model.embed_tokens.weight")}))
    require_fitting_weights(folder)


def test_a_tensor_that_is_missing_is_named_beside_others_of_no_use(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", 0, tied=False)
    rewrite(folder, lambda tensors: (tensors.pop("lm_head.weight"), tensors.update(extra=torch.zeros(3))))
    told = refusal(folder)
    assert told.endswith(
        "lack what its config.json asks for: lm_head.weight; take the config.json that belongs to them"
    )
    with pytest.raises(ConfigError):
        load_model(folder, "float32")


def without(kind: str, folder: Path, pattern: str) -> str:
    """The refusal of a family's folder without the tensors of that pattern, which loading it refuses, too."""
    family_model(kind).save_pretrained(folder)
    gone = []

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        gone.extend(name for name in tensors if re.search(pattern, name))
        for name in gone:
            del tensors[name]

    rewrite(folder, drop)
    assert gone
    with pytest.raises(ConfigError):
        load_model(folder, "float32")
    told = refusal(folder)
    assert sorted(gone)[0] in told
    return told


@pytest.mark.parametrize("kind", ["qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize(
    "pattern",
    [
        r"layers\.2\.mlp\.experts\.3\.up_proj",  # of one expert
        r"layers\.2\.mlp\.experts\.3\.",  # all of it
        r"layers\.2\.mlp\.experts\.",  # all experts of a layer
        r"layers\.0\.input_layernorm",  # of no expert
    ],
)
def test_what_is_missing_of_a_model_with_a_tensor_for_each_expert_is_named(
    kind: str, pattern: str, tmp_path: Path
) -> None:
    assert "lack what its config.json asks for: model.layers." in without(kind, tmp_path, pattern)


@pytest.mark.parametrize("tied", [True, False])
def test_each_tensor_of_another_shape_is_named_with_both_shapes(tied: bool, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", 0, tied=tied)
    require_fitting_weights(folder)
    given = json.loads((folder / "config.json").read_text())
    hidden, inner = given["hidden_size"], given["intermediate_size"]
    edit(folder, intermediate_size=inner + 2)
    told = refusal(folder)
    assert told.startswith(f"the weights in {folder} do not fit its config.json: model.layers.0.mlp.down_proj.weight ")
    assert f"model.layers.0.mlp.gate_proj.weight is {inner} x {hidden} and should be {inner + 2} x {hidden}" in told
    assert f" and {3 * given['num_hidden_layers'] - 3} more; take the config.json that belongs to them" in told
    with pytest.raises(ConfigError):
        load_model(folder, "float32")


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", 0)
    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    edit(folder, num_hidden_layers=layers + 1, layer_types=None)
    assert f"lack what its config.json asks for: model.layers.{layers}." in refusal(folder)
    with pytest.raises(ConfigError):
        load_model(folder, "float32")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model_type": "qwen33"}, "knows no model_type 'qwen33'; did you mean 'qwen3'?"),
        ({"model_type": "zzzzzz"}, "knows no model_type 'zzzzzz'; a newer transformers may know it"),
        ({"model_type": "clip"}, "config.json: no model can be made of it: Unrecognized configuration class"),
        ({"hidden_act": "nonesuch"}, "config.json: no model can be made of it: "),
    ],
)
def test_a_configuration_that_no_model_can_be_made_of_is_told(
    changed: dict[str, Any], says: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", 0)
    edit(folder, **changed)
    assert says in refusal(folder)


def test_a_reward_model_is_looked_at_as_what_it_is(tmp_path: Path) -> None:
    source = write_model(tmp_path / "model", 0)
    model = load_model(source, "float32")
    head = torch.zeros(1, model.config.hidden_size)
    write_classifier({**dict(model.named_parameters()), "score.weight": head}, source, tmp_path / "scores")
    require_fitting_weights(tmp_path / "scores", scores=True)
    edit(tmp_path / "scores", num_hidden_layers=model.config.num_hidden_layers + 1, layer_types=None)
    assert "lack what its config.json asks for: model.layers." in refusal(tmp_path / "scores", scores=True)


def test_quantized_weights_are_left_to_whoever_unpacks_them(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", 0)
    edit(folder, vocab_size=999, quantization_config={"quant_method": "fp8"})
    require_fitting_weights(folder)
