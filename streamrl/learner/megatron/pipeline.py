"""A share's packs through the stages, by megatron-core's schedules: one forward and backward after the other, or
interleaved where a stage has several model chunks.

Packs differ in length, and stages tell each other the shape of what they send. Interleaved ones cannot, and packs get
tokens there that nobody looks at, until all are as long.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import nn

from streamrl.learner.batch.packing import PackedBatch, empty_pack
from streamrl.learner.megatron.ranks import MegatronRanks

Result = TypeVar("Result")
LossOf = Callable[[nn.Module, PackedBatch], tuple[torch.Tensor, Result]]
"""On the last stage: the loss of a pack, a scalar with gradient, and what is reported of it."""


def even_packs(packs: Sequence[PackedBatch], ranks: MegatronRanks, *, spread: bool) -> list[PackedBatch]:
    """Collective. As many packs as the rank that has most, one at least: with experts each forward is a collective of
    ranks with different rows. Interleaved stages take a multiple of their number. Where tokens are spread, each of the
    ranks has as many of a pack."""
    layout = ranks.layout
    most, length = ranks.group.max_int(max(len(packs), 1)), 0
    if layout.virtual > 1:
        most += -most % layout.pipeline
        length = max((pack.num_tokens for pack in packs), default=1)
    multiple = layout.context * (layout.tensor if spread else 1)
    more = (empty_pack() for _ in range(most - len(packs)))
    return [_lengthened(pack, max(length, pack.num_tokens), multiple) for pack in (*packs, *more)]


def _lengthened(pack: PackedBatch, tokens: int, multiple: int) -> PackedBatch:
    """With tokens behind it that see themselves alone, until there are so many, and a multiple."""
    missing = -(-tokens // multiple) * multiple - pack.num_tokens
    if not missing:
        return pack
    ids, position_ids = (F.pad(tensor, (0, missing)) for tensor in (pack.ids, pack.position_ids))
    routes = None if pack.routes is None else F.pad(pack.routes, (0, 0, 0, 0, 0, missing), value=-1)
    layout = pack.layout.with_lone_tokens(missing)
    return replace(pack, ids=ids, position_ids=position_ids, layout=layout, routes=routes)


def run_packs(
    chunks: Sequence[nn.Module],
    packs: Sequence[PackedBatch],
    loss_of: LossOf[Result],
    *,
    forward: Callable[[nn.Module, PackedBatch], torch.Tensor],
    backward: bool,
) -> list[Result]:
    """Collective. What the last stage reports of each pack, in order; nothing on the others. Gradients are added to
    those that are there, and summed over the ranks behind the last pack."""

    def step(rest: Iterator[PackedBatch], chunk: nn.Module) -> tuple[torch.Tensor, Any]:
        pack = next(rest)
        if not getattr(chunk, "module", chunk).post_process:  # one with gradients is wrapped
            return forward(chunk, pack), None
        loss, result = loss_of(chunk, pack)
        return loss, partial(_as_it_is, result)

    iterators = [iter(packs) for _ in chunks]
    return get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iterators if len(chunks) > 1 else iterators[0],
        model=list(chunks) if len(chunks) > 1 else chunks[0],
        num_microbatches=len(packs),
        seq_length=packs[0].num_tokens,  # ignored with variable_seq_lengths
        micro_batch_size=1,
        forward_only=not backward,
    )


def on_device(packs: Sequence[PackedBatch], chunks: Sequence[nn.Module], ranks: MegatronRanks) -> list[PackedBatch]:
    """Collective. As `even_packs`, where the chunks are."""
    even = even_packs(packs, ranks, spread=chunks[0].config.sequence_parallel)
    return [pack.to(ranks.group.device) for pack in even]


def hidden_by(temperature: float) -> Callable[[nn.Module, PackedBatch], torch.Tensor]:
    """What a chunk that is not the last one gives of a pack."""

    def forward(chunk: nn.Module, pack: PackedBatch) -> torch.Tensor:
        hidden: torch.Tensor = chunk(pack, temperature)
        return hidden

    return forward


@torch.no_grad()
def read_packs(chunks: Sequence[nn.Module], packs: Sequence[PackedBatch], temperature: float) -> None:
    """Collective. A forward of packs as `on_device` gives them, for what layers see."""

    def loss_of(chunk: nn.Module, pack: PackedBatch) -> tuple[torch.Tensor, None]:
        found_K, _ = chunk(pack, temperature)
        return found_K.sum(), None

    run_packs(chunks, packs, loss_of, forward=hidden_by(temperature), backward=False)


@torch.no_grad()
def logprobs_of(
    chunks: Sequence[nn.Module], packs: Sequence[PackedBatch], ranks: MegatronRanks, temperature: float
) -> list[torch.Tensor]:
    """Collective. float32 [K] for each pack, on the CPU of each rank: log-probs of its targets."""
    return _of_targets(chunks, packs, ranks, temperature, lambda found: found[0])


@torch.no_grad()
def values_of(chunks: Sequence[nn.Module], packs: Sequence[PackedBatch], ranks: MegatronRanks) -> list[torch.Tensor]:
    """Collective. float32 [K] for each pack, on the CPU of each rank: values of its targets."""
    return _of_targets(chunks, packs, ranks, 1.0, lambda found: found)


def _of_targets(
    chunks: Sequence[nn.Module],
    packs: Sequence[PackedBatch],
    ranks: MegatronRanks,
    temperature: float,
    number_K: Callable[[Any], torch.Tensor],
) -> list[torch.Tensor]:
    """number_K: of what the last chunk gives."""

    def loss_of(chunk: nn.Module, pack: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        found_K = number_K(chunk(pack, temperature))
        return found_K.sum(), found_K

    given = on_device(packs, chunks, ranks)
    results = run_packs(chunks, given, loss_of, forward=hidden_by(temperature), backward=False)
    counts = [pack.num_targets for pack in packs]
    whole = (
        torch.cat(results[: len(packs)]) if results and packs else torch.zeros(sum(counts), device=ranks.group.device)
    )
    whole = ranks.gatherers.from_stage(whole.float(), ranks.layout.pipeline - 1)
    return list(whole.cpu().split(counts)) if counts else []


def _as_it_is(result: Result, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Result]:
    """A loss that is neither divided by packs nor by tokens."""
    return loss, torch.ones((), dtype=torch.int, device=loss.device), result
