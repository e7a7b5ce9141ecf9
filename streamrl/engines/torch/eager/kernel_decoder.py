"""The decoder for float32 on a CPU: matrix products by `RowProducts`, all else by compiled kernels.

Guaranteed: what `Decoder` guarantees, and the same numbers but for rounding. It reads of the cache what a row sees
and no more, so rows need no order. It knows no requests.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from transformers import PretrainedConfig

from streamrl.engines.torch.eager import kernels
from streamrl.engines.torch.eager.decode_room import DecodeRoom
from streamrl.engines.torch.eager.decoder import Decoder, Outcome
from streamrl.engines.torch.eager.kv import KvCache
from streamrl.engines.torch.eager.passes import Pass, to_device, upload_groups
from streamrl.engines.torch.eager.plan import Plan
from streamrl.engines.torch.families import ModelShape
from streamrl.engines.torch.products import RowProducts
from streamrl.engines.torch.rotary import rope_tables
from streamrl.engines.torch.sampling import SamplingRows, sampled_scores
from streamrl.engines.torch.weights import FusedWeights, LayerWeights
from streamrl.types import FloatArray, LongArray

CPU = torch.device("cpu")


@dataclass(slots=True)
class KernelPass(Pass):
    """What the kernels need besides, on the host: positions int64 [T], the last one that a row sees; slot_of_row int64
    [by_cache]; source int64 [W] and targets int64 [W * 2 kv_heads], what is stored where."""

    positions: LongArray
    slot_of_row: LongArray
    source: LongArray
    targets: LongArray


class KernelDecoder(Decoder):
    """A `Decoder` for float32 on a CPU."""

    sorts_rows = False
    reads_rests = True
    short = 64  # beyond some hundred the library's products with all keys at once are quicker

    def __init__(self, config: PretrainedConfig, shape: ModelShape, *, max_length: int, products: RowProducts) -> None:
        self._shape = shape
        self._products = products
        self._eps_value = np.float32(shape.rms_norm_eps)
        cos, sin = rope_tables(config, max_length, torch.float32, CPU)
        self._cos, self._sin = cos.numpy(), sin.numpy()
        self._no_norm = np.zeros((0, shape.head_dim), dtype=np.float32)
        self._row = np.zeros(shape.head_dim, dtype=np.float32)
        longest = max(max_length, shape.intermediate_size, shape.vocab_size)
        self._scratch = np.zeros((2, longest), dtype=np.float32)
        self._bits = np.zeros(longest, dtype=np.int32)
        self._gate_bits = self._bits[: shape.intermediate_size]
        self._room: DecodeRoom | None = None

    def begin(self, plan: Plan, cache: KvCache) -> KernelPass:
        slots = np.arange(plan.decode_rows) if plan.slot_of_row is None else plan.slot_of_row
        return KernelPass(
            slots=len(plan.slot_positions),
            rows=plan.decode_rows,
            kept=max(plan.decode_rows, self._products.min_rows),
            by_cache=plan.decode_rows + len(plan.rest_slots),
            token_ids=to_device(plan.token_ids, CPU),
            row_of_slot=None if plan.row_of_slot is None else to_device(plan.row_of_slot, CPU),
            groups=upload_groups(plan, CPU),
            scored=None if plan.scored is None else to_device(plan.scored, CPU),
            positions=plan.positions,
            slot_of_row=np.concatenate((slots, plan.rest_slots)),
            source=np.arange(len(plan.slots)) if plan.source is None else plan.source,
            targets=cache.targets(plan.slots, plan.places),
        )

    def advance(self, current: Pass, token_ids: torch.Tensor) -> None:
        assert current.decodes_only, "a pass with prompts cannot be advanced"
        current = cast(KernelPass, current)
        current.token_ids[: current.rows].copy_(token_ids)
        # A padding row moves on with the others; nobody reads it, and it is never ahead of a real one.
        current.positions += 1
        current.targets += 1

    def choose(
        self, logits_NV: torch.Tensor, rows: SamplingRows, uniform_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = sampled_scores(logits_NV, rows).numpy()
        number, vocab = scores.shape
        greedy = np.zeros(number, dtype=np.bool_) if rows.greedy is None else rows.greedy.numpy()
        tokens, logprobs = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.float32)
        weights, bits = self._scratch[0, :vocab], self._bits[:vocab]
        kernels.draw(scores, greedy, uniform_N.numpy(), weights, bits, tokens, logprobs)
        return torch.from_numpy(tokens), torch.from_numpy(logprobs)

    def forward(self, weights: FusedWeights, shared: Pass, cache: KvCache) -> Outcome:
        if not shared.decodes_only or shared.scored is not None or self._shape.num_experts:
            return super().forward(weights, shared, cache)
        room = self._room
        if room is None or (room.rows, room.kept) != (shared.rows, shared.kept):
            room = self._room = DecodeRoom(self._shape, shared.rows, shared.kept)
        torch.index_select(weights.embedding, 0, shared.token_ids, out=room.hidden)
        for index, layer in enumerate(weights.layers):
            self._decode_layer(room, index, layer, cast(KernelPass, shared), cache)
        self._norm_in(room, weights.final_norm)
        self._products.linear(room.normed, weights.head, None, out=room.logits)
        return Outcome(room.logits[: shared.rows])

    def _decode_layer(
        self, room: DecodeRoom, index: int, layer: LayerWeights, shared: KernelPass, cache: KvCache
    ) -> None:
        """As `Decoder.forward` runs it, with the same bits."""
        products = self._products
        self._norm_in(room, layer.input_norm)
        products.linear(room.normed, layer.qkv, layer.qkv_bias, out=room.projected)
        self._rotate_array(room.heads, layer, shared)
        kernels.store(room.heads, shared.source, shared.targets, cache.lines(index))
        keys, values = cache.arrays(index)
        slots, last = shared.slot_of_row, shared.positions
        kernels.attend(room.heads, keys, values, slots, last, self._scratch, self._bits, room.mixed)
        products.add_linear(room.hidden, room.attended, layer.output, layer.output_bias, out=room.hidden)
        self._norm_in(room, layer.post_norm)
        products.linear(room.normed, layer.gate_up, layer.gate_up_bias, out=room.both)
        kernels.gate(room.both_array, self._gate_bits, room.inner_array)
        products.add_linear(room.hidden, room.inner, layer.down, layer.down_bias, out=room.hidden)

    def _norm_in(self, room: DecodeRoom, weight: torch.Tensor) -> None:
        kernels.rms_norm(room.hidden_array, weight.numpy(), self._eps_value, room.normed_array)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        source = x.numpy()
        out = np.empty_like(source)
        kernels.rms_norm(source, weight.numpy(), self._eps_value, out)
        return torch.from_numpy(out)

    def _rotate(self, heads_THD: torch.Tensor, layer: LayerWeights, shared: Pass) -> None:
        self._rotate_array(heads_THD.numpy(), layer, cast(KernelPass, shared))

    def _rotate_array(self, heads_THD: FloatArray, layer: LayerWeights, shared: KernelPass) -> None:
        norm = self._no_norm if layer.qk_norm is None else layer.qk_norm.numpy()
        rotated = self._shape.num_heads + self._shape.num_kv_heads
        turned = self._cos, self._sin, shared.positions
        kernels.rotate(heads_THD, norm, self._eps_value, *turned, rotated, self._row)

    def _store(self, index: int, heads_THD: torch.Tensor, cache: KvCache, shared: Pass) -> None:
        shared = cast(KernelPass, shared)
        if len(shared.source):
            kernels.store(heads_THD.numpy(), shared.source, shared.targets, cache.lines(index))

    def _attend_cache(
        self, index: int, heads_THD: torch.Tensor, cache: KvCache, shared: Pass, count: int
    ) -> torch.Tensor:
        shared = cast(KernelPass, shared)
        out = np.empty((count, self._shape.num_heads, self._shape.head_dim), dtype=np.float32)
        keys, values = cache.arrays(index)
        slots, last = shared.slot_of_row[:count], shared.positions[:count]
        kernels.attend(heads_THD.numpy(), keys, values, slots, last, self._scratch, self._bits, out)
        return torch.from_numpy(out.reshape(count, -1))

    def _gate(self, both: torch.Tensor) -> torch.Tensor:
        out = np.empty((both.shape[0], self._shape.intermediate_size), dtype=np.float32)
        kernels.gate(both.numpy(), self._gate_bits, out)
        return torch.from_numpy(out)
