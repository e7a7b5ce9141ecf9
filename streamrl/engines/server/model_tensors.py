"""Which tensors a server's model has, from the folder that it was started with, and whether a version has just these.

Some servers keep the old value of a tensor that is missing in an update, and leave one out that they do not know,
without a word: what they served then would be no version at all.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """shapes: by name. tied: the head is the embedding, and may be there as a tensor of its own or not."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: bool

    @classmethod
    def of_folder(cls, folder: Path) -> "ModelTensors":
        """Of a Hugging Face model folder with safetensors files."""
        from safetensors import safe_open

        shapes: dict[str, tuple[int, ...]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, "numpy") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        config = json.loads((folder / "config.json").read_bytes())
        return cls(shapes, bool(config.get("tie_word_embeddings", False)))

    def fault_of(self, tensors: "Mapping[str, torch.Tensor]") -> str:
        """Why these are not the model's; "" when they are."""
        optional = {_HEAD} if self.tied else set()
        if missing := sorted(self.shapes.keys() - tensors.keys() - optional):
            return f"tensor {missing[0]} is missing, and {len(missing) - 1} more"
        if unknown := sorted(tensors.keys() - self.shapes.keys() - optional):
            return f"tensor {unknown[0]} is not of this model, and {len(unknown) - 1} more"
        for name in sorted(self.shapes.keys() & tensors.keys()):
            if (shape := tuple(tensors[name].shape)) != self.shapes[name]:
                return f"tensor {name} has shape {shape}; this model has {self.shapes[name]}"
        return ""
