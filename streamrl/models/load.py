"""Models from a preset or from a Hugging Face folder.

Guarantees that the same (preset, seed) gives the same weights everywhere and leaves the caller's random state
alone, that a folder's weights are complete or refused, and that no code and no pickle from a folder is ever
run. It does not place models on devices and does not shard them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

from streamrl.config.estimates.model_presets import Preset, find_preset
from streamrl.config.schema.run import ModelConfig
from streamrl.errors import ConfigError
from streamrl.models.dtypes import DTYPES
from streamrl.models.folders import checked_folder, read_mark, write_folder
from streamrl.models.tokenizer import load_tokenizer, write_preset_tokenizer


def build_model(config: ModelConfig, seed: int) -> PreTrainedModel:
    """The model that `config` names, in evaluation mode: a preset initialised from `seed`, or a folder's.

    Raises ConfigError for an unknown preset, or a folder that cannot be used.
    """
    if config.preset is None:
        return load_model(_given_path(config), config.dtype)
    preset = find_preset(config.preset)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(_hf_config(preset), dtype=torch.float32)
    # Drawn in float32 and rounded: a bfloat16 model is the rounding of the float32 one.
    drawn: PreTrainedModel = model.to(DTYPES[config.dtype]).eval()  # type: ignore[arg-type]
    return drawn


def load_model(folder: str | Path, dtype: str) -> PreTrainedModel:
    """The causal language model in `folder`, in evaluation mode, weights as `dtype` ("float32", "bfloat16").

    safetensors only, no remote code, no download. Raises ConfigError naming the folder and what is wrong with
    it: not there, no config, no safetensors, an unknown model type, weights missing or of another shape.
    """
    return _load(AutoModelForCausalLM, Path(folder), dtype)


def load_classifier(folder: str | Path) -> PreTrainedModel:
    """The sequence classifier of one label in `folder`, in evaluation mode and float32; as `load_model` otherwise.
    Raises ConfigError for one of several labels too."""
    model = _load(AutoModelForSequenceClassification, Path(folder), "float32")
    if model.config.num_labels != 1:
        raise ConfigError(f"the model in {folder} has {model.config.num_labels} labels; a reward model has one")
    return model


def _load(kind: Any, folder: Path, dtype: str) -> PreTrainedModel:
    """kind: an auto class of transformers."""
    folder = checked_folder(folder)
    try:
        with no_progress_bars():
            model, info = kind.from_pretrained(
                folder,
                dtype=DTYPES[dtype],
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (ValueError, OSError, KeyError, RuntimeError, ImportError, SafetensorError, StrictDataclassError) as error:
        raise ConfigError(f"model folder {folder} cannot be loaded: {error}") from error
    _refuse_incomplete(folder, info)
    loaded: PreTrainedModel = model.eval()
    return loaded


def prepare_model_folder(config: ModelConfig, seed: int, folder: str | Path) -> Path:
    """The folder from which every process of a run loads the model and the tokenizer.

    A preset is written to `folder` once (config, safetensors, tokenizer); a second call with the same preset,
    seed and dtype finds it there, and one with others raises ConfigError. For `config.path` it is that folder
    itself, checked and absolute, not copied.
    """
    if config.preset is None:
        path = checked_folder(_given_path(config)).resolve()
        load_tokenizer(path)
        return path
    folder = Path(folder)
    mark: dict[str, object] = {"preset": config.preset, "seed": seed, "dtype": config.dtype}
    found = read_mark(folder)
    if found is None:
        write_folder(folder, mark, lambda fresh: _write_preset(config, seed, fresh))
    elif found != mark:
        raise ConfigError(f"{folder} holds a model made from {found}, not from {mark}; take another folder")
    return folder


def _write_preset(config: ModelConfig, seed: int, folder: Path) -> None:
    preset = find_preset(str(config.preset))
    with no_progress_bars():
        build_model(config, seed).save_pretrained(folder)
    write_preset_tokenizer(preset, folder)


def _hf_config(preset: Preset) -> PreTrainedConfig:
    return AutoConfig.for_model(preset.model_type, **preset.config_values())


def _given_path(config: ModelConfig) -> Path:
    if config.path is None:
        raise ConfigError("the model has neither a preset nor a path; give one of model.preset and model.path")
    return Path(config.path)


def _refuse_incomplete(folder: Path, info: dict[str, set[str]]) -> None:
    for what in ("missing_keys", "mismatched_keys"):
        if info[what]:
            names = sorted(map(str, info[what]))
            raise ConfigError(
                f"model folder {folder}: {len(names)} weights under {what.replace('_', ' ')}, "
                f"{', '.join(names[:3])} among them; the folder is not a whole model of its config.json"
            )


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Progress bars of a library have no place in the logs of a service."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
