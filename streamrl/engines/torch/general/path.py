"""The way of every decoder that is not in `families`: by transformers' own modules, slower and exact."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from streamrl.engines.torch.eager.runner import EagerRunner
from streamrl.engines.torch.general.cache import LayeredCache
from streamrl.engines.torch.general.decoder import GeneralDecoder
from streamrl.engines.torch.general.model import GeneralModel, steady_length
from streamrl.engines.torch.general.self_test import require_exact
from streamrl.engines.torch.general.weights import NamedWeights
from streamrl.engines.torch.ladder import LEAST_ROWS
from streamrl.engines.torch.products import PlainProducts, RowProducts
from streamrl.engines.torch.runner import Runner
from streamrl.errors import ConfigError


class GeneralPath:
    """Any other decoder of transformers, by its own modules."""

    runs_graphs = False
    routes = None

    def __init__(self, model: PreTrainedModel | PretrainedConfig, dtype: torch.dtype, device: torch.device) -> None:
        self._model = GeneralModel(model, dtype, device)
        self._dtype, self._device = dtype, device
        text = (model if isinstance(model, PretrainedConfig) else model.config).get_text_config()
        self.vocab_size, self.context = text.vocab_size, text.max_position_embeddings
        self._steady = steady_length(text)
        self.shapes = self._model.products()

    def new_weights(self) -> NamedWeights:
        return self._model.new_weights()

    def weights_over(self, tensors: Mapping[str, torch.Tensor]) -> NamedWeights:
        return self._model.weights_over(tensors)

    def runner(
        self, weights: NamedWeights, *, slots: int, max_length: int, kv_bytes: int, products: RowProducts | None
    ) -> Runner:
        if max_length > self._steady:
            raise ConfigError(
                f"the torch engine cannot run this {self._model.kind} model beyond {self._steady} tokens: its rotary "
                f"embedding changes there with what shares a batch; requests have up to {max_length}: shorten prompts "
                "or rollout.sampling.max_new_tokens"
            )
        sizes = self._model.layer_sizes(weights)
        kind: dict[str, Any] = {"dtype": self._dtype, "device": self._device}
        require_exact(self._model, weights, sizes, self.vocab_size, **kind)
        # What is no linear layer, a recurrence for one, goes by the library whatever multiplies the rows of those.
        rows = 1 if products is None else max(products.min_rows, LEAST_ROWS)
        self._model.run_experts(apart=products is not None and not isinstance(products, PlainProducts))
        cache = LayeredCache(sizes, slots=slots, max_length=max_length, kv_bytes=kv_bytes, **kind)
        decoder = GeneralDecoder(self._model, max_length, rows, self._device, products or PlainProducts())
        return EagerRunner(decoder, cache, min_rows=rows, device=self._device)
