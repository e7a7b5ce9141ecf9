"""The forward pass of a Llama-like decoder over paged keys and values, by a library's matrix products and our kernels.

Guaranteed: each row's numbers depend on its own tokens alone, but for the matrix products; with `invariant` these too
(see `matmul`). It computes what transformers computes for the families in `families`. It never waits for the device, so
a pass can be captured as a graph. It knows no requests.

Shapes: T tokens, B rows, E hidden size, V vocabulary.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from transformers import PretrainedConfig

from streamrl.engines.torch.cuda.attention import PagedAttention, splits_of
from streamrl.engines.torch.cuda.cache import PagedCache
from streamrl.engines.torch.cuda.matmul import invariant_mm
from streamrl.engines.torch.cuda.norms import gate, rms_norm
from streamrl.engines.torch.cuda.rotary import rotate_and_store
from streamrl.engines.torch.families import ModelShape
from streamrl.engines.torch.rotary import rope_tables
from streamrl.engines.torch.weights import FusedWeights, LayerWeights

Attend = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(heads of a layer [T, G, D], its cache) -> attended [T, H * D]."""


class PagedDecoder:
    """Runs passes over a paged cache. rows: the most that decode at once."""

    def __init__(
        self,
        config: PretrainedConfig,
        shape: ModelShape,
        *,
        rows: int,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        invariant: bool,
    ) -> None:
        self._shape = shape
        self._rope = rope_tables(config, max_length, dtype, device)
        self._attention = PagedAttention(shape, splits_of(max_length), rows, dtype, device)
        self._mm = invariant_mm if invariant else torch.mm
        self._fused_bias = not invariant
        self._rows = torch.arange(rows, device=device)
        self.prompt_tokens = self._attention.prompt_tokens

    def decode(
        self,
        weights: FusedWeights,
        cache: PagedCache,
        table: torch.Tensor,
        token_ids_B: torch.Tensor,
        positions_B: torch.Tensor,
        logits_BV: torch.Tensor,
    ) -> None:
        """Put next-token logits of one token for each row into `logits`, in the weights' dtype.

        table: int32 [rows, pages of a row]. token_ids, positions: int64; position -1 where there is no row.
        """

        def attend(heads: torch.Tensor, layer_cache: torch.Tensor) -> torch.Tensor:
            return self._attention.decode(heads, layer_cache, table, positions_B)

        places = table, self._rows[: len(token_ids_B)], positions_B
        x_BE, added_BE = F.embedding(token_ids_B, weights.embedding), None
        for layer, layer_cache in zip(weights.layers, cache.layers, strict=True):
            x_BE, added_BE = self._layer(layer, layer_cache, (x_BE, added_BE), places, attend)
        hidden_BE = rms_norm(x_BE, weights.final_norm, self._shape.rms_norm_eps, added_BE)
        self._mm(hidden_BE, weights.head, out=logits_BV)

    def read(
        self,
        weights: FusedWeights,
        cache: PagedCache,
        table: torch.Tensor,
        token_ids_T: torch.Tensor,
        positions_T: torch.Tensor,
        rows_T: torch.Tensor,
        blocks: torch.Tensor,
        through: bool = False,
    ) -> torch.Tensor | None:
        """Put keys and values of packed prompts into the cache. See `prompts.PromptPass`. through: whether what the
        last layer gives is returned, [T, E]."""

        def attend(heads: torch.Tensor, layer_cache: torch.Tensor) -> torch.Tensor:
            return self._attention.prompts(heads, layer_cache, table, blocks)

        places = table, rows_T, positions_T
        x: tuple[torch.Tensor, torch.Tensor | None] = F.embedding(token_ids_T, weights.embedding), None
        layers = list(zip(weights.layers, cache.layers, strict=True))
        for layer, layer_cache in layers[:-1]:
            x = self._layer(layer, layer_cache, x, places, attend)
        if not through:
            # Of the last layer, prompts need keys and values only.
            self._project(*layers[-1], x, places)
            return None
        last, added = self._layer(*layers[-1], x, places, attend)
        return last + added

    def head(self, weights: FusedWeights, x_TE: torch.Tensor) -> torch.Tensor:
        """Logits of what the last layer gives for some tokens, float32 [T, V]."""
        return self._mm(rms_norm(x_TE, weights.final_norm, self._shape.rms_norm_eps), weights.head).float()

    def _layer(
        self,
        layer: LayerWeights,
        layer_cache: torch.Tensor,
        x: tuple[torch.Tensor, torch.Tensor | None],
        places: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        attend: Attend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream, and what is still to be added to it."""
        heads = self._project(layer, layer_cache, x, places)
        attended = self._linear(attend(heads, layer_cache), layer.output, layer.output_bias)
        normed = rms_norm(x[0], layer.post_norm, self._shape.rms_norm_eps, attended)
        both = self._linear(normed, layer.gate_up, layer.gate_up_bias)
        return x[0], self._linear(gate(both), layer.down, layer.down_bias)

    def _project(
        self,
        layer: LayerWeights,
        layer_cache: torch.Tensor,
        x: tuple[torch.Tensor, torch.Tensor | None],
        places: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Heads [T, G, D] with rotated queries; keys and values are in the cache."""
        shape = self._shape
        normed = rms_norm(x[0], layer.input_norm, shape.rms_norm_eps, x[1])
        heads = self._linear(normed, layer.qkv, layer.qkv_bias)
        heads = heads.view(-1, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        rotate_and_store(heads, layer.qk_norm, self._rope, layer_cache, *places, shape)
        return heads

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if bias is None:
            return self._mm(x, weight)
        return torch.addmm(bias, x, weight) if self._fused_bias else self._mm(x, weight).add_(bias)
