"""The two ways to run a model: one for the families of `families`, fast, and one for every other decoder, slower.

Guaranteed: both are exact, and a model that neither computes exactly is refused by name. `path_for` says which it
takes.
"""

from collections.abc import Collection, Mapping
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from transformers import PretrainedConfig

from streamrl.engines.torch.eager.decoder import Decoder
from streamrl.engines.torch.eager.kernel_decoder import KernelDecoder
from streamrl.engines.torch.eager.kv import KvCache
from streamrl.engines.torch.eager.runner import EagerRunner
from streamrl.engines.torch.families import describe
from streamrl.engines.torch.products import PlainProducts, RowProducts
from streamrl.engines.torch.runner import Runner
from streamrl.engines.torch.serving import Model, WeightSet
from streamrl.engines.torch.weights import FusedWeights, product_shapes
from streamrl.errors import ConfigError
from streamrl.system.kernel_cache import compiles_kernels


class ModelPath(Protocol):
    """How a model is run."""

    vocab_size: int
    context: int
    runs_graphs: bool
    """Whether the weights that serve stay where they are."""

    @property
    def shapes(self) -> Collection[tuple[int, int]]:
        """[inner, columns] of the weights that it multiplies with."""
        ...

    @property
    def routes(self) -> tuple[int, int] | None:
        """Layers and experts of a token, of a path that says where tokens go."""
        ...

    def new_weights(self) -> WeightSet: ...

    def weights_over(self, tensors: Mapping[str, torch.Tensor]) -> WeightSet: ...

    def runner(
        self, weights: Any, *, slots: int, max_length: int, kv_bytes: int, products: RowProducts | None
    ) -> Runner:
        """weights: of its own making. products: how rows are multiplied, so that none depends on another; None where
        they may."""
        ...


def path_for(model: Model, dtype: torch.dtype, device: torch.device, *, compiled: bool) -> ModelPath:
    """The fast way where it is exact, else the general one. Raises ConfigError for a model that neither can run."""
    config = model if isinstance(model, PretrainedConfig) else model.config
    if getattr(config, "quantization_config", None) is not None:
        raise ConfigError(
            f"the torch engine cannot run this {config.model_type} model exactly: quantization_config is set "
            "(there are plain float weights)"
        )
    try:
        return FamilyPath(config, dtype, device, compiled)
    except ConfigError:
        # Here and not above: the models' own modules take as long to import as all else of an engine.
        from streamrl.engines.torch.general.path import GeneralPath

        return GeneralPath(model, dtype, device)


def routes_of(path: ModelPath) -> tuple[int, int]:
    """Layers and experts of a token. Raises ConfigError for a path that does not say where tokens go."""
    if path.routes is None:
        raise ConfigError(
            "the torch engine records routes of experts for Qwen3-MoE and Mixtral with experts in every layer, on a "
            "CPU; set learner.router_replay = false"
        )
    return path.routes


class FamilyPath:
    """Llama, Qwen2, Qwen3, and on a CPU Qwen3-MoE and Mixtral: fused weights, by torch's operators, compiled kernels or
    captured graphs."""

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype, device: torch.device, compiled: bool) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._compiled = compiled and (device.type != "cpu" or compiles_kernels())
        self._shape = describe(config)
        if self._shape.num_experts and device.type != "cpu":
            raise ConfigError("experts run by fused weights on a CPU only; elsewhere transformers groups their rows")
        self.vocab_size, self.context = self._shape.vocab_size, self._shape.context
        self.shapes = product_shapes(self._shape)
        has_experts = self._shape.num_experts > 0
        self.routes = (self._shape.num_layers, self._shape.experts_per_token) if has_experts else None
        self.runs_graphs = self._compiled and device.type == "cuda" and find_spec("triton") is not None

    def new_weights(self) -> FusedWeights:
        return FusedWeights(self._shape, self._dtype, self._device)

    def weights_over(self, tensors: Mapping[str, torch.Tensor]) -> FusedWeights:
        return FusedWeights.over(self._shape, self._dtype, tensors)

    def runner(
        self, weights: FusedWeights, *, slots: int, max_length: int, kv_bytes: int, products: RowProducts | None
    ) -> Runner:
        size: dict[str, Any] = {"slots": slots, "max_length": max_length, "kv_bytes": kv_bytes}
        if self.runs_graphs:
            from streamrl.engines.torch.cuda.runner import GraphRunner

            kind: dict[str, Any] = {"dtype": self._dtype, "device": self._device}
            return GraphRunner(self._config, self._shape, weights, **size, **kind, deterministic=products is not None)
        products = products or PlainProducts()
        cache = KvCache(self._shape, **size, dtype=self._dtype, device=self._device)
        decoder = self._decoder(max_length, products)
        return EagerRunner(decoder, cache, min_rows=products.min_rows, device=self._device)

    def _decoder(self, max_length: int, products: RowProducts) -> Decoder:
        if self._compiled and self._device.type == "cpu" and self._dtype is torch.float32:
            return KernelDecoder(self._config, self._shape, max_length=max_length, products=products)
        kind: dict[str, Any] = {"dtype": self._dtype, "device": self._device}
        return Decoder(self._config, self._shape, max_length=max_length, products=products, **kind)
