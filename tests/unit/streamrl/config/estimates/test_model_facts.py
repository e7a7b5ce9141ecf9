"""What a check reads of a model folder: how a completion ends, and whether the weights are all there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from streamrl.config.estimates.model_facts import read_folder
from streamrl.errors import ConfigError
from streamrl.models.folders import checked_folder

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 4,
}
WEIGHTS = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
TABLE = {"a": 0, "<end>": 1}
ADDED = {"model": {"vocab": {}}, "added_tokens": [{"content": "<e>"}]}
PICTURE = {"model": {"vocab": {"a": 0, "<picture>": 9}}, "added_tokens": [{"content": "<picture>"}]}
LIST = [["a", -1.0], ["<end>", -2.0]]


def folder(path: Path, *, vocabulary: Any = TABLE, weights_bytes: int = 24, **files: dict[str, Any]) -> Path:
    """A model folder; `files` are the small JSON files by name, without their ending."""
    header = json.dumps(WEIGHTS).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(weights_bytes))
    contents: dict[str, Any] = {"config": {}, "tokenizer": {"model": {"vocab": vocabulary}}, **files}
    contents["config"] = {**CONFIG, **contents["config"]}
    for name, content in contents.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"eos_token": "<end>"}},
        {"tokenizer_config": {"eos_token": {"content": "<end>"}}, "vocabulary": LIST},
        {"tokenizer": ADDED, "tokenizer_config": {"eos_token": "<e>"}},
        {"config": {"eos_token_id": 1}},
        {"config": {"eos_token_id": [1, 3]}},
        {"config": {"eos_token_id": 1}, "tokenizer": PICTURE},
        {"generation_config": {"eos_token_id": 3}},
    ],
)
def test_every_way_to_name_an_end_token_that_exists_is_good(tmp_path: Path, files: dict[str, Any]) -> None:
    facts, found = read_folder(folder(tmp_path, **files))
    assert found == []
    assert facts is not None
    assert facts.num_parameters == 6


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "has no end-of-sequence token"),
        ({"tokenizer_config": {"eos_token": "</s>"}}, "names '</s>' as its end-of-sequence token and does not have it"),
        ({"config": {"eos_token_id": 4}}, "eos_token_id 4 in .* is no token of the model, which has 4"),
        (
            {"config": {"eos_token_id": 1}, "vocabulary": {"a": 0, "b": 4}},
            "has ids up to 4, and vocab_size in config.json is 4; give the tokenizer and the config.json that belong",
        ),
        (
            {"config": {"eos_token_id": 1}, "vocabulary": [["a", 0.0]] * 5},
            "has ids up to 4, and vocab_size in config.json is 4",
        ),
        ({"config": {"eos_token_id": "<end>"}}, "eos_token_id '<end>' in .* is no token"),
        ({"config": {"eos_token_id": 1}, "tokenizer": {}}, "tokenizer.json holds no vocabulary"),
        ({"config": {"eos_token_id": 1}, "weights_bytes": 23}, "is cut off: it has [0-9]+ bytes of [0-9]+"),
    ],
)
def test_an_end_token_that_is_not_there_and_weights_that_are_cut_off_are_named(
    tmp_path: Path, files: dict[str, Any], says: str
) -> None:
    (problem,) = read_folder(folder(tmp_path, **files))[1]
    assert re.search(says, problem.what)


ADAPTERS = {"adapter_config": {"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-8B"}}


def test_a_folder_of_adapters_says_whose_they_are_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(ADAPTERS["adapter_config"]))
    (tmp_path / "adapter_model.safetensors").touch()
    facts, problems = read_folder(tmp_path)
    assert facts is None
    (problem,) = problems
    assert "has the adapters of a model (peft), and not the model, which is 'Qwen/Qwen3-8B'" in problem.what
    assert "merge_and_unload()" in problem.what
    with pytest.raises(ConfigError, match="which is 'Qwen/Qwen3-8B'"):
        checked_folder(tmp_path)


def test_adapters_beside_a_model_are_refused_since_another_model_would_be_loaded(tmp_path: Path) -> None:
    _, (problem,) = read_folder(folder(tmp_path, **ADAPTERS))
    assert "transformers would load the model that it names ('Qwen/Qwen3-8B'); move it" in problem.what
