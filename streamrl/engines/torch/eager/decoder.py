"""The forward pass of a Llama-like decoder over packed tokens and the KV cache.

Guaranteed: each row's numbers depend on its own tokens and cached keys only, to the bit, as far as its `RowProducts`
keep rows independent (see `attention` for the rest). It computes what transformers computes for the families in
`families`, with fused products. It knows no requests.

Shapes: T packed tokens, N running slots, E hidden size, H heads, D head_dim.
"""

from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from transformers import PretrainedConfig

from streamrl.engines.torch.eager.attention import attend, causal_attention
from streamrl.engines.torch.eager.experts import choose_experts, run_experts
from streamrl.engines.torch.eager.kv import KvCache
from streamrl.engines.torch.eager.passes import Keys, LibraryPass, Pass, PassMaker
from streamrl.engines.torch.eager.plan import Plan
from streamrl.engines.torch.families import ModelShape
from streamrl.engines.torch.products import RowProducts
from streamrl.engines.torch.sampling import SamplingRows, choose
from streamrl.engines.torch.weights import FusedWeights, LayerWeights


class Outcome(NamedTuple):
    """What a pass gives. logits: float32 [N, vocab], next-token logits of the running slots; None when N is 0. scored:
    of the plan's S scored tokens what `head` makes logits of, [S, ...]; None without any. routes: int64 [T, layers, K],
    the experts of the packed tokens, -1 where a layer ran none for them; None for a model without experts.
    """

    logits: torch.Tensor | None
    scored: torch.Tensor | None = None
    routes: torch.Tensor | None = None


class Decoder:
    """Runs passes over a cache with whatever weights it is given, by torch on any device and in any float type.

    `begin` lays a plan out; `forward` runs it; `advance` goes on to the next token of the same rows.
    """

    sorts_rows = True
    """Whether a step is cheaper with the longest requests first (see `arrangement`)."""
    reads_rests = False
    """Whether a pass may have several rows of one slot, each seeing what stands before it."""
    short = 0
    """Tokens of a prompt that is read so at most."""

    def __init__(
        self,
        config: PretrainedConfig,
        shape: ModelShape,
        *,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        products: RowProducts,
    ) -> None:
        self._shape = shape
        self._products = products
        self._chosen: list[torch.Tensor] = []
        self._eps = torch.tensor(shape.rms_norm_eps, dtype=torch.float32, device=device)
        self._maker = PassMaker(
            config, shape, max_length=max_length, dtype=dtype, device=device, min_rows=products.min_rows
        )

    def begin(self, plan: Plan, cache: KvCache) -> Pass:
        return self._maker.make(plan, cache)

    def advance(self, current: Pass, token_ids: torch.Tensor) -> None:
        """Turn a pass that `decodes_only` into the one that reads `token_ids` (int64 [N]) one position further."""
        self._maker.advance(cast(LibraryPass, current), token_ids)

    def choose(
        self, logits_NV: torch.Tensor, rows: SamplingRows, uniform_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `sampling.choose`."""
        return choose(logits_NV, rows, uniform_N)

    def forward(self, weights: FusedWeights, shared: Pass, cache: KvCache) -> Outcome:
        """Run a pass."""
        x_TE = F.embedding(shared.token_ids, weights.embedding)
        self._chosen = []
        for index, layer in enumerate(weights.layers):
            heads_THD = self._project(x_TE, layer, shared)
            self._store(index, heads_THD, cache, shared)
            if index + 1 < len(weights.layers) or shared.scored is not None:
                attended_TE = self._attend(index, heads_THD, cache, shared)
            elif shared.rows:
                # Of the last layer, prompts need keys and values only.
                x_TE = x_TE[: shared.kept]
                attended_TE = self._pad(self._attend_cache(index, heads_THD, cache, shared, shared.rows), shared.kept)
            else:
                return Outcome(None, routes=self._routes(shared))
            x_TE = self._mix(x_TE, attended_TE, layer)
        scored = None if shared.scored is None else x_TE.index_select(0, shared.scored)
        routes = self._routes(shared)
        if not shared.rows:
            return Outcome(None, scored, routes)
        logits = self.head(weights, x_TE[: shared.kept])[: shared.rows]
        if shared.row_of_slot is not None:
            logits = logits.index_select(0, shared.row_of_slot)
        return Outcome(logits, scored, routes)

    def _routes(self, shared: Pass) -> torch.Tensor | None:
        """Of the pass that ran, as `Outcome` has them."""
        shape = self._shape
        if not shape.num_experts:
            return None
        found = torch.full((len(shared.token_ids), shape.num_layers, shape.experts_per_token), -1)
        for layer, chosen in enumerate(self._chosen):
            # In the last layer what stands behind the decode rows is padding.
            ran = shared.rows if layer + 1 == shape.num_layers and shared.scored is None else len(chosen)
            found[:ran, layer] = chosen[:ran].cpu()
        return found

    def head(self, weights: FusedWeights, x_RE: torch.Tensor) -> torch.Tensor:
        """float32 [R, vocab], of what the last layer gives for some tokens."""
        rows = self._pad(x_RE, max(len(x_RE), self._products.min_rows))
        hidden = self._norm(rows, weights.final_norm)
        return self._products.linear(hidden, weights.head, None)[: len(x_RE)].float()

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMS norm over the last dimension, as transformers: in float32, rounded, then times the weight. Five
        kernels in place of the eight of F.rms_norm, which a small model feels."""
        wide = x if x.dtype is torch.float32 else x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self._eps, length, length, value=1 / x.shape[-1]).rsqrt_()
        scaled = wide * scale
        return (scaled if wide is x else scaled.to(x.dtype)).mul_(weight)

    def _project(self, x_TE: torch.Tensor, layer: LayerWeights, shared: Pass) -> torch.Tensor:
        """Query, key and value heads, [T, H + 2 kv_heads, D], rotated."""
        shape = self._shape
        projected = self._products.linear(self._norm(x_TE, layer.input_norm), layer.qkv, layer.qkv_bias)
        heads = projected.view(-1, shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim)
        self._rotate(heads, layer, shared)
        return heads

    def _rotate(self, heads_THD: torch.Tensor, layer: LayerWeights, shared: Pass) -> None:
        """Norm and rotate the query and key heads in place."""
        shared = cast(LibraryPass, shared)
        qk = place = heads_THD[:, : -self._shape.num_kv_heads]
        if layer.qk_norm is not None:
            qk = self._norm(qk, layer.qk_norm)
        swapped = qk.roll(self._shape.head_dim // 2, -1)
        torch.addcmul(qk * shared.cos, swapped, shared.sin, out=place)

    def _store(self, index: int, heads_THD: torch.Tensor, cache: KvCache, shared: Pass) -> None:
        shared = cast(LibraryPass, shared)
        kv = heads_THD[:, self._shape.num_heads :]
        kv = kv if shared.source is None else kv.index_select(0, shared.source)
        cache.write(index, kv, shared.targets)

    def _attend(self, index: int, heads_THD: torch.Tensor, cache: KvCache, shared: Pass) -> torch.Tensor:
        """Attention of all packed tokens, [T, H * D]; zeros for padding."""
        total = heads_THD.shape[0]
        by_cache = shared.by_cache
        parts = self._attend_cache(index, heads_THD, cache, shared, by_cache) if by_cache else None
        if parts is not None and by_cache == total:
            return parts
        out = heads_THD.new_zeros(total, self._shape.num_heads * self._shape.head_dim)
        if parts is not None:
            out[:by_cache] = parts
        for group in shared.groups:
            padded = heads_THD.index_select(0, group.gather).unflatten(0, (-1, group.padded))
            attended = causal_attention(padded, self._shape.num_heads, self._shape.num_kv_heads)
            out.index_copy_(0, group.packed, attended.flatten(0, 1).index_select(0, group.flat))
        return out

    def _attend_cache(
        self, index: int, heads_THD: torch.Tensor, cache: KvCache, shared: Pass, count: int
    ) -> torch.Tensor:
        """Attention of the first `count` rows to their slots, [count, H * D]: of the decode rows, and of rests."""
        shared = cast(LibraryPass, shared)
        shape, slots = self._shape, shared.slots
        query = heads_THD[: shared.rows, : shape.num_heads]
        if shared.slot_of_row is not None:
            # A slot without a row of its own attends with zeros, to nobody's use: the cache is read by slot.
            query = query.new_zeros(slots, *query.shape[1:]).index_copy_(0, shared.slot_of_row, query)
        kv_heads = shape.num_kv_heads
        query = query.reshape(slots * kv_heads, -1, shape.head_dim)
        keys = cast(Keys, shared.keys)
        mask = keys.mask
        parts = []
        for first, stop, length in keys.ranges:
            key, value = cache.read(index, first, stop, length)
            if len(keys.ranges) == 1:
                parts.append(attend(query, key, value, mask))
            else:
                lanes = slice(first * kv_heads, stop * kv_heads)
                parts.append(attend(query[lanes], key, value, mask[lanes, :, :length]))
        out = (parts[0] if len(parts) == 1 else torch.cat(parts)).view(slots, -1)
        return out if shared.slot_of_row is None else out.index_select(0, shared.slot_of_row)

    def _pad(self, rows_NE: torch.Tensor, kept: int) -> torch.Tensor:
        missing = kept - rows_NE.shape[0]
        return F.pad(rows_NE, (0, 0, 0, missing)) if missing else rows_NE

    def _mix(self, x_TE: torch.Tensor, attended_TE: torch.Tensor, layer: LayerWeights) -> torch.Tensor:
        """Output projection and gated MLP, or experts, each added to the residual."""
        x_TE = self._products.add_linear(x_TE, attended_TE, layer.output, layer.output_bias)
        normed_TE = self._norm(x_TE, layer.post_norm)
        if layer.router is not None:
            return x_TE + self._run_experts(normed_TE, layer, layer.router)
        both = self._products.linear(normed_TE, layer.gate_up, layer.gate_up_bias)
        return self._products.add_linear(x_TE, self._gate(both), layer.down, layer.down_bias)

    def _run_experts(self, x_TE: torch.Tensor, layer: LayerWeights, router_EX: torch.Tensor) -> torch.Tensor:
        shape, products = self._shape, self._products
        routes = choose_experts(products.linear(x_TE, router_EX, None), shape.experts_per_token, shape.renormalised)

        self._chosen.append(routes.experts)

        def run(expert: int, rows_RE: torch.Tensor) -> torch.Tensor:
            inner = self._gate(products.linear(rows_RE, layer.gate_up[expert], None))
            return products.linear(inner, layer.down[expert], None)

        return run_experts(x_TE, routes, run, num_experts=shape.num_experts, min_rows=products.min_rows)

    def _gate(self, both: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, [T, I], of their joint projection [T, 2 I]."""
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)
