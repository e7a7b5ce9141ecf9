"""A share's packs through the stages, by megatron-core's schedules: one forward and backward after the other, or
interleaved where a stage has several stretches of layers.

Packs differ in length, so stages tell each other the shape of what they send.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import nn

from streamrl.learner.batch.packing import PackedBatch, empty_pack
from streamrl.learner.megatron.ranks import MegatronRanks

Told = TypeVar("Told")
Judge = Callable[[nn.Module, PackedBatch], tuple[torch.Tensor, Told]]
"""On the last stage: the loss of a pack, a scalar with gradient, and what is told of it."""


def even_packs(packs: Sequence[PackedBatch], ranks: MegatronRanks) -> list[PackedBatch]:
    """Collective. As many packs as the rank that has most, one at least: with experts each forward is a collective of
    ranks with different rows. Interleaved stages take a multiple of their number."""
    most = ranks.group.max_int(max(len(packs), 1))
    if ranks.layout.virtual > 1:
        most += -most % ranks.layout.pipeline
    return [*packs, *(empty_pack() for _ in range(most - len(packs)))]


def run_packs(
    stretches: Sequence[nn.Module],
    packs: Sequence[PackedBatch],
    judge: Judge[Told],
    *,
    forward: Callable[[nn.Module, PackedBatch], torch.Tensor],
    backward: bool,
) -> list[Told]:
    """Collective. What the last stage tells of each pack, in order; nothing on the others. Gradients are added to those
    that are there, and summed over the ranks behind the last pack."""

    def step(rest: Iterator[PackedBatch], stretch: nn.Module) -> tuple[torch.Tensor, Any]:
        pack = next(rest)
        if not stretch.module.post_process:
            return forward(stretch, pack), None
        loss, told = judge(stretch, pack)
        return loss, partial(_as_it_is, told)

    iterators = [iter(packs) for _ in stretches]
    return get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iterators if len(stretches) > 1 else iterators[0],
        model=list(stretches) if len(stretches) > 1 else stretches[0],
        num_microbatches=len(packs),
        seq_length=1,  # of no use where shapes are told
        micro_batch_size=1,
        forward_only=not backward,
    )


def _as_it_is(told: Told, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Told]:
    """A loss that is neither divided by packs nor by tokens."""
    return loss, torch.ones((), dtype=torch.int, device=loss.device), told
