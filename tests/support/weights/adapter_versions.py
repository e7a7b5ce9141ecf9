"""Small versions that hold adapters, as a publisher leaves them in shared memory: each incarnation with its base."""

from pathlib import Path

import torch

from streamrl.models.adapters.names import adapter_of
from streamrl.types import Version
from streamrl.weights.manifest import AdapterFacts, WeightManifest, base_version
from streamrl.weights.shm.shm import ShmPublisher

RUN, KEY = "run-1", b"k" * 32
RANK, ALPHA = 2, 3.0
ADAPTED = {"layers.0.q_proj.weight": (80, 60), "layers.1.o_proj.weight": (60, 80)}
SHAPES = {"embed.weight": (11, 60), **ADAPTED, "norm.weight": (60,)}


def base_tensors(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in SHAPES.items()}


def adapter_tensors(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    tensors = {}
    for weight, (out, into) in ADAPTED.items():
        lora_a, lora_b = adapter_of(weight)
        tensors[lora_a] = torch.randn((RANK, into), generator=generator)
        tensors[lora_b] = torch.randn((out, RANK), generator=generator)
    return tensors


def served_tensors(step: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """What a replica has to make of it, written down once more."""
    base, adapters = base_tensors(seed, dtype), adapter_tensors(step)
    for weight in ADAPTED:
        lora_a, lora_b = (adapters[name] for name in adapter_of(weight))
        base[weight] = (base[weight].float() + (ALPHA / RANK) * (lora_b @ lora_a)).to(dtype)
    return base


class AdapterVersions:
    """A publisher with its manifests."""

    def __init__(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        self.folder = folder
        self.publisher = ShmPublisher(RUN, KEY, folder)
        self.bases: dict[int, WeightManifest] = {}
        self._dtype = dtype

    def base(self, incarnation: int = 0) -> WeightManifest:
        """That of an incarnation, published at the first question."""
        if incarnation not in self.bases:
            tensors = base_tensors(incarnation, self._dtype).items()
            self.bases[incarnation] = self.publisher.publish(tensors, base_version(Version(incarnation, 0)))
        return self.bases[incarnation]

    def version(self, step: int, incarnation: int = 0) -> WeightManifest:
        facts = AdapterFacts(base=self.base(incarnation), rank=RANK, alpha=ALPHA)
        return self.publisher.publish(adapter_tensors(step).items(), Version(incarnation, step), facts)
