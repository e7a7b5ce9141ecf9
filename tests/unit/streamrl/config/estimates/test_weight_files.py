"""A check of model folders as people have them refuses what a load would, and counts what a load reads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from streamrl.config.estimates.model_facts import read_folder
from streamrl.config.schema.run import ModelConfig
from streamrl.errors import ConfigError
from streamrl.models.load import load_model, prepare_model_folder
from streamrl.models.plain_weights import read_plain

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n"
WEIGHTS = "model.safetensors"
Change = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], name: str = WEIGHTS) -> Change:
    def write(folder: Path) -> None:
        tensors = change({key: one.clone() for key, one in load_file(folder / WEIGHTS).items()})
        save_file(tensors, folder / name, metadata={"format": "pt"})

    return write


def configured(**values: Any) -> Change:
    def write(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return write


def sharded(folder: Path) -> None:
    """In two files, with an index."""
    tensors = load_file(folder / WEIGHTS)
    parts: dict[str, dict[str, torch.Tensor]] = {"model-1.safetensors": {}, "model-2.safetensors": {}}
    for number, (name, one) in enumerate(tensors.items()):
        parts[f"model-{1 + number % 2}.safetensors"][name] = one
    for name, part in parts.items():
        save_file(part, folder / name, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: part for part, some in parts.items() for name in some}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    (folder / WEIGHTS).unlink()


def without(*names: str) -> Change:
    def remove(folder: Path) -> None:
        sharded(folder)
        for name in names:
            (folder / name).unlink()

    return remove


def eight_bits(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: one.to(torch.int8) if one.ndim == 2 else one for name, one in tensors.items()}


def with_mark(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(path.read_text(), encoding="utf-8-sig")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without("model-2.safetensors"), "names model-2.safetensors, which is not there; copy the folder again"),
        (without(f"{WEIGHTS}.index.json"), "has model-1.safetensors, model-2.safetensors and neither"),
        (weights(eight_bits), "is of I8, no floating-point numbers; give the unquantised model"),
        (configured(quantization_config={"quant_method": "gptq", "bits": 4}), "are quantised (gptq)"),
        (configured(quantization_config={"quant_method": "compressed-tensors"}), "are quantised (compressed-tensors)"),
        (configured(auto_map={"AutoConfig": "a.B"}), "take auto_map out"),
        (lambda folder: (folder / WEIGHTS).write_text(POINTER), f"{WEIGHTS} is a pointer of Git LFS; fetch"),
        (lambda folder: (folder / "tokenizer.json").write_text(POINTER), "tokenizer.json is a pointer of Git LFS"),
        (with_mark, "config.json begins with a byte-order mark"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused_by_a_check(change: Change, words: str, folder: Path) -> None:
    change(folder)
    facts, problems = read_folder(folder)
    assert facts is None
    assert [problem.what for problem in problems if words in problem.what], problems


@pytest.mark.parametrize(
    "change",
    [
        sharded,
        lambda folder: None,
        weights(lambda tensors: {name: one + 1 for name, one in tensors.items()}, "model_old.safetensors"),
        weights(lambda tensors: {"consolidated." + name: one for name, one in tensors.items()}, "all.safetensors"),
        configured(quantization_config=None),
    ],
)
def test_what_is_counted_is_what_is_loaded(change: Change, folder: Path) -> None:
    change(folder)
    facts, problems = read_folder(folder)
    assert not problems
    assert facts is not None
    assert facts.num_parameters == sum(one.numel() for one in load_model(folder, "float32").parameters())


def test_weights_that_two_files_have_are_left_to_transformers(folder: Path) -> None:
    """The last of them by name was taken, and a learner beside it took the first."""
    shapes = {name: tuple(one.shape) for name, one in load_file(folder / WEIGHTS).items()}
    assert read_plain(folder, "float32", lambda _: shapes) is not None
    weights(lambda tensors: {name: one + 1 for name, one in tensors.items()}, "model_old.safetensors")(folder)
    assert read_plain(folder, "float32", lambda _: shapes) is None


@pytest.mark.parametrize(
    "change", [configured(num_hidden_layers=99), configured(quantization_config={"quant_method": "awq", "bits": 4})]
)
def test_what_transformers_says_of_a_folder_is_one_message(change: Change, folder: Path) -> None:
    change(folder)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load_model(folder, "float32")
