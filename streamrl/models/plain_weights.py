"""A model of a folder as its configuration and its weights by name, without transformers' model classes, which take two
seconds to import. For whoever computes with the weights by himself.

Guarantees: what is given is what `load_model` gives; where it could be anything else, nothing is given.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PretrainedConfig

from streamrl.errors import ConfigError
from streamrl.models.dtypes import DTYPES
from streamrl.models.folders import checked_folder

Shapes = Mapping[str, tuple[int, ...]]


class PlainModel(NamedTuple):
    """tensors: each weight by its name, once."""

    config: PretrainedConfig
    tensors: dict[str, torch.Tensor]


def read_plain(folder: Path, dtype: str, shapes_of: Callable[[PretrainedConfig], Shapes]) -> PlainModel | None:
    """None for a folder that is to be loaded by `load_model`: it knows older names and layouts, ties what is tied, and
    says what is wrong. shapes_of: names and shapes of the weights; raises ConfigError for a model of which they are
    not known.

    Raises ConfigError for a folder that is no model's.
    """
    try:
        config = AutoConfig.from_pretrained(checked_folder(folder), local_files_only=True, trust_remote_code=False)
        shapes = shapes_of(config)
        tensors = _tensors(folder, shapes)
    except (ConfigError, ValueError, OSError, KeyError, SafetensorError):
        checked_folder(folder)
        return None
    if {name: tuple(one.shape) for name, one in tensors.items()} != dict(shapes):
        return None
    return PlainModel(config, {name: one.to(DTYPES[dtype]) for name, one in tensors.items()})


def _tensors(folder: Path, shapes: Shapes) -> dict[str, torch.Tensor]:
    """Those of all files; of one that has a name too many, the names alone are looked at."""
    found: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            if not shapes.keys() >= set(names):
                raise ConfigError(f"{path} has other weights")
            if found.keys() & set(names):
                raise ConfigError(f"{path} has weights that another file has, too")
            found |= {name: file.get_tensor(name) for name in names}
    return found
