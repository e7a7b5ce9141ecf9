"""The tokens of a pack spread over several ranks, for rows that are too long for one (sequence parallelism).

Guarantees: each rank has a stretch of the pack's tokens in every layer, and every token of its part of the heads while
it attends (Jacobs et al. 2023, "DeepSpeed Ulysses"), so attention over packs works as it does alone and nothing is
padded; what is known of each target afterwards is the same on all of these ranks, and each gives gradients for the
targets that it predicts. Two exchanges in the forward of a layer, two in its backward.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import FunctionCtx
from transformers import PretrainedConfig

from streamrl.errors import ConfigError
from streamrl.learner.batch.packing import PackedBatch


@dataclass(frozen=True, slots=True)
class SequenceRanks:
    """The ranks that have the same packs, as one of them sees them. rank: its number among `size`."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def stretch(self, pack: PackedBatch) -> "Stretch":
        """This rank's part of a pack. One of fewer tokens than ranks gets some that nobody looks at: the model takes no
        stretch of none."""
        if (lacking := self.size - pack.num_tokens) > 0:
            zeros = pack.ids.new_zeros(lacking)
            ids, position_ids = torch.cat([pack.ids, zeros]), torch.cat([pack.position_ids, zeros])
            pack = replace(pack, ids=ids, position_ids=position_ids, layout=pack.layout.with_lone_tokens(lacking))
        ends = [pack.num_tokens * number // self.size for number in range(self.size + 1)]
        start, end = ends[self.rank : self.rank + 2]
        mine_K = ((pack.predictors >= start) & (pack.predictors < end)).nonzero()[:, 0]
        return Stretch(self, pack, ends, mine_K)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens of a pack that one rank has: as many as any other's, or one less or more. T tokens in the pack, t here; K
    targets in the pack, k of which are predicted by a token that is here.

    ends: of all stretches, in the order of the ranks, behind a 0. mine: int64 [k], places among the pack's targets.
    """

    ranks: SequenceRanks
    pack: PackedBatch
    ends: list[int]
    mine: torch.Tensor

    @property
    def start(self) -> int:
        return self.ends[self.ranks.rank]

    @property
    def tokens(self) -> slice:
        return slice(self.start, self.ends[self.ranks.rank + 1])

    @property
    def predictors(self) -> torch.Tensor:
        """int64 [k], the tokens that predict these, counted from the first one here."""
        return self.pack.predictors.index_select(0, self.mine) - self.start

    @property
    def targets(self) -> torch.Tensor:
        """int64 [k], the ids of those that are predicted here."""
        return self.pack.targets.index_select(0, self.mine)

    def to_heads(
        self, query_tHD: torch.Tensor, key_tHD: torch.Tensor, value_tHD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Collective. Of all tokens, this rank's part of the heads: query [T, heads / size, head_dim], key and value
        with the key heads that these need. Key heads are repeated where there are too few for all ranks."""
        size, key_heads = self.ranks.size, key_tHD.shape[1]
        repeats = size // math.gcd(key_heads, size)
        if repeats > 1:
            key_tHD, value_tHD = (x.repeat_interleave(repeats, 1) for x in (key_tHD, value_tHD))
        parts = [x.unflatten(1, (size, -1)) for x in (query_tHD, key_tHD, value_tHD)]
        # To each rank the heads of its part, all three in one message.
        sent = torch.cat(parts, 2).transpose(0, 1).flatten(0, 1)
        found_TID = _Exchange.apply(sent, self.ranks.group, [len(query_tHD)] * size, self._lengths)
        query, key, value = found_TID.split([part.shape[2] for part in parts], 1)
        return query, key, value

    def to_tokens(self, output_TID: torch.Tensor) -> torch.Tensor:
        """Collective. The inverse of `to_heads` for the outputs: [t, heads, head_dim]."""
        size, here = self.ranks.size, self.tokens.stop - self.start
        found = _Exchange.apply(output_TID, self.ranks.group, self._lengths, [here] * size)
        return found.unflatten(0, (size, here)).transpose(0, 1).flatten(1, 2)

    def of_all_targets(self, values_k: torch.Tensor) -> torch.Tensor:
        """Collective. What each rank has of its targets, float32 [k], as one [K]; equal on all ranks. The gradient of
        another rank's part is the other rank's."""
        whole_K: torch.Tensor = _Whole.apply(values_k, self.mine, self.pack.num_targets, self.ranks.group)
        return whole_K

    @property
    def _lengths(self) -> list[int]:
        return [end - start for start, end in zip(self.ends[:-1], self.ends[1:], strict=True)]


def require_heads(config: PretrainedConfig, sequence_size: int, tensor_size: int) -> None:
    """Raise ConfigError for a model whose heads are not shared out evenly."""
    if config.num_attention_heads % (sequence_size * tensor_size):
        beside = f" with learner.tensor_parallel = {tensor_size}" if tensor_size > 1 else ""
        raise ConfigError(
            f"learner.sequence_parallel = {sequence_size}{beside} does not divide the model's num_attention_heads = "
            f"{config.num_attention_heads}; set a divisor"
        )


def hidden_at_predictors(decoder: nn.Module, pack: PackedBatch, stretch: Stretch | None) -> torch.Tensor:
    """[K, hidden], the last hidden state at the predictors of the pack's targets; of a stretch, [k, hidden] at those
    that are in it."""
    tokens, pack = (slice(None), pack) if stretch is None else (stretch.tokens, stretch.pack)
    hidden_TH = decoder(
        input_ids=pack.ids[None, tokens],
        position_ids=pack.position_ids[None, tokens],
        attention_mask=None,
        use_cache=False,
        segments=pack.layout,
        stretch=stretch,
    ).last_hidden_state[0]
    if stretch is None:
        return hidden_TH.index_select(0, pack.predictors)
    return hidden_TH.index_select(0, stretch.predictors)


class _Exchange(torch.autograd.Function):
    """`apply(rows, group, sent, received)`: rows go to the ranks by `sent`, as many to each, and come by `received`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, rows: torch.Tensor, group: dist.ProcessGroup, sent: list[int], received: list[int]
    ) -> torch.Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        return _exchanged(rows, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _exchanged(gradients[0], ctx.group, ctx.received, ctx.sent), None, None, None


def _exchanged(rows: torch.Tensor, group: dist.ProcessGroup, sent: list[int], received: list[int]) -> torch.Tensor:
    found = rows.new_empty((sum(received), *rows.shape[1:]))
    dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
    return found


class _Whole(torch.autograd.Function):
    """`apply(values_k, mine_k, count, group)`: as `Stretch.of_all_targets`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, values_k: torch.Tensor, mine_k: torch.Tensor, count: int, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.save_for_backward(mine_k)
        whole_K = values_k.new_zeros(count)
        whole_K[mine_k] = values_k
        # Only zeros are added to a value.
        dist.all_reduce(whole_K, group=group)
        return whole_K

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (mine_k,) = ctx.saved_tensors
        return gradients[0].index_select(0, mine_k), None, None, None
