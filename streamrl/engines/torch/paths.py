"""The two ways to run a model: one for the families of `families`, fast, and one for every other decoder, slower.

Guaranteed: both are exact, and a model that neither computes exactly is refused by name. `path_for` says which it
takes.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Protocol

import torch
from transformers import PretrainedConfig, PreTrainedModel

from streamrl.engines.torch.batch_invariance import LEAST_ROWS
from streamrl.engines.torch.eager.decoder import Decoder
from streamrl.engines.torch.eager.kernel_decoder import KernelDecoder
from streamrl.engines.torch.eager.kv import KvCache
from streamrl.engines.torch.eager.runner import EagerRunner, least_rows
from streamrl.engines.torch.families import describe
from streamrl.engines.torch.general.cache import LayeredCache
from streamrl.engines.torch.general.decoder import GeneralDecoder
from streamrl.engines.torch.general.model import GeneralModel, steady_length
from streamrl.engines.torch.general.self_test import require_exact
from streamrl.engines.torch.general.weights import NamedWeights
from streamrl.engines.torch.runner import Runner
from streamrl.engines.torch.serving import WeightSet
from streamrl.engines.torch.weights import FusedWeights, products
from streamrl.errors import ConfigError


class ModelPath(Protocol):
    """How a model is run. `runs_graphs`: whether the weights that serve stay where they are."""

    vocab_size: int
    context: int
    runs_graphs: bool

    def new_weights(self) -> WeightSet: ...

    def weights_over(self, tensors: Mapping[str, torch.Tensor]) -> WeightSet: ...

    def runner(
        self, weights: WeightSet, *, slots: int, max_length: int, kv_bytes: int, deterministic: bool
    ) -> Runner: ...


def path_for(
    model: PreTrainedModel | PretrainedConfig, dtype: torch.dtype, device: torch.device, *, compiled: bool
) -> ModelPath:
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
        return GeneralPath(model, dtype, device)


class FamilyPath:
    """Llama, Qwen2, Qwen3: fused weights, by torch's operators, compiled kernels or captured graphs."""

    def __init__(self, config: PretrainedConfig, dtype: torch.dtype, device: torch.device, compiled: bool) -> None:
        self._config, self._dtype, self._device, self._compiled = config, dtype, device, compiled
        self._shape = describe(config)
        self.vocab_size, self.context = self._shape.vocab_size, self._shape.context
        self.runs_graphs = compiled and device.type == "cuda" and find_spec("triton") is not None

    def new_weights(self) -> FusedWeights:
        return FusedWeights(self._shape, self._dtype, self._device)

    def weights_over(self, tensors: Mapping[str, torch.Tensor]) -> FusedWeights:
        return FusedWeights.over(self._shape, self._dtype, tensors)

    def runner(
        self, weights: FusedWeights, *, slots: int, max_length: int, kv_bytes: int, deterministic: bool
    ) -> Runner:
        size = {"slots": slots, "max_length": max_length, "kv_bytes": kv_bytes}
        if self.runs_graphs:
            from streamrl.engines.torch.cuda.runner import GraphRunner

            kind = {"dtype": self._dtype, "device": self._device, "deterministic": deterministic}
            return GraphRunner(self._config, self._shape, weights, **size, **kind)
        rows = least_rows(products(self._shape), self._dtype, self._device) if deterministic else 1
        cache = KvCache(self._shape, **size, dtype=self._dtype, device=self._device)
        return EagerRunner(self._decoder(max_length, rows), cache, min_rows=rows, device=self._device)

    def _decoder(self, max_length: int, min_rows: int) -> Decoder:
        if self._compiled and self._device.type == "cpu" and self._dtype is torch.float32:
            return KernelDecoder(self._config, self._shape, max_length=max_length, min_rows=min_rows)
        kind = {"dtype": self._dtype, "device": self._device, "min_rows": min_rows}
        return Decoder(self._config, self._shape, max_length=max_length, **kind)


class GeneralPath:
    """Any other decoder of transformers, by its own modules."""

    runs_graphs = False

    def __init__(self, model: PreTrainedModel | PretrainedConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._model = GeneralModel(model, dtype, device)
        self._dtype, self._device = dtype, device
        text = (model if isinstance(model, PretrainedConfig) else model.config).get_text_config()
        self.vocab_size, self.context = text.vocab_size, text.max_position_embeddings
        self._steady = steady_length(text)

    def new_weights(self) -> NamedWeights:
        return self._model.new_weights()

    def weights_over(self, tensors: Mapping[str, torch.Tensor]) -> NamedWeights:
        return self._model.weights_over(tensors)

    def runner(
        self, weights: NamedWeights, *, slots: int, max_length: int, kv_bytes: int, deterministic: bool
    ) -> Runner:
        if max_length > self._steady:
            raise ConfigError(
                f"the torch engine cannot run this {self._model.kind} model beyond {self._steady} tokens: its rotary "
                f"embedding changes there with what shares a batch; requests have up to {max_length}: shorten prompts "
                "or rollout.sampling.max_new_tokens"
            )
        sizes = self._model.layer_sizes(weights)
        kind = {"dtype": self._dtype, "device": self._device}
        require_exact(self._model, weights, sizes, self.vocab_size, **kind)
        rows = least_rows(self._model.products(), self._dtype, self._device) if deterministic else 1
        cache = LayeredCache(sizes, slots=slots, max_length=max_length, kv_bytes=kv_bytes, **kind)
        decoder = GeneralDecoder(self._model, max_length, max(rows, LEAST_ROWS if deterministic else 1), self._device)
        return EagerRunner(decoder, cache, min_rows=rows, device=self._device)
