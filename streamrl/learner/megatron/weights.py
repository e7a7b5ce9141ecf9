"""A model's weights, and what is shaped like them, between Hugging Face tensors and the ranks' parts.

Guarantees: what goes in comes out, to the bit, in every layout. On the way out one tensor after the other is whole on
each rank, and never two layers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from streamrl.errors import DataError
from streamrl.learner.megatron.cuts import WHOLE, Sizes
from streamrl.learner.megatron.plan import Entry, by_name
from streamrl.learner.megatron.ranks import Gatherers, MegatronRanks, gathered

TensorByName = Callable[[str], torch.Tensor]
OfPlace = Callable[[str, bool], torch.Tensor]
"""Collective of the ranks that have the same part. (place of a parameter, whether it is an expert's) to a tensor of its
shape."""


class ModelWeights:
    """Of one rank. plan: of these weights; the chunks may have others, too. shapes: of all their Hugging Face tensors,
    in the order in which they go out."""

    def __init__(
        self,
        plan: Sequence[Entry],
        shapes: Mapping[str, torch.Size],
        sizes: Sizes,
        chunks: Sequence[nn.Module],
        ranks: MegatronRanks,
    ) -> None:
        self.plan = plan
        self.shapes = shapes
        self.sizes = sizes
        self._ranks = ranks
        planned = {place for entry in plan if entry.stage == ranks.stage for place in entry.places}
        self.params: dict[str, nn.Parameter] = {
            f"{number}.{name}": param
            for number, chunk in enumerate(chunks)
            for name, param in by_name(dict(chunk.named_parameters())).items()
            if f"{number}.{name}" in planned
        }
        """By their place on this rank: the number of the model chunk, and the name in it."""
        self._by_tensor = {name: entry for entry in plan if entry.exported for name in entry.tensors}

    @property
    def num_elements(self) -> int:
        """Of the whole model."""
        return sum(shape.numel() for shape in self.shapes.values())

    @property
    def num_tensors(self) -> int:
        return len(self.shapes)

    def own(self) -> Iterator[tuple[Entry, int, nn.Parameter]]:
        """(entry, number of the expert among this rank's, parameter) of all that this rank has a part of."""
        for entry in self.plan:
            if entry.stage == self._ranks.stage:
                for number, place in enumerate(entry.places):
                    yield entry, number, self.params[place]

    def mark(self) -> None:
        """Tell megatron-core which parameters each tensor rank has another part of: it counts the others once in a
        gradient norm. Its layers say so themselves only where they draw their weights. And which experts have their
        gradients summed over other ranks than the rest: those of one rank see tokens of others also where each tensor
        rank has all experts whole, which its layers pass over."""
        layout = self._ranks.layout
        as_the_rest = layout.expert == 1 and layout.expert_tensor == layout.tensor
        for entry, _, param in self.own():
            param.tensor_model_parallel = entry.cut is not WHOLE
            param.allreduce = as_the_rest or not entry.of_experts

    def part(self, entry: Entry, number: int, tensor: TensorByName) -> torch.Tensor:
        """This rank's part of what `tensor` gives whole. Raises DataError for another shape than the weight's."""
        wholes = [self._checked(name, tensor(name)) for name in entry.tensors]
        if entry.of_experts:
            expert = self._ranks.expert_rank * len(entry.places) + number
            wholes = [whole[expert] for whole in wholes]
        group = self._ranks.gatherers.cut(entry.of_experts)
        return entry.cut.part(wholes, self.sizes, group.rank(), group.size())

    def _checked(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        if whole.shape != self.shapes[name]:
            raise DataError(f"weight {name}: the shape is {tuple(whole.shape)}, expected {tuple(self.shapes[name])}")
        return whole

    def load(self, tensor: TensorByName) -> None:
        """Copy every weight in; `tensor(name)` gives the whole one. All shapes are looked at before the first is
        changed."""
        for name in self.shapes:
            self._checked(name, tensor(name))
        with torch.no_grad():
            for entry, number, param in self.own():
                param.copy_(self.part(entry, number, tensor))

    def whole(self, of: OfPlace, dtype: torch.dtype, groups: Gatherers) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. By Hugging Face name, in the model's order, the whole of what `of` gives for each place; dtype,
        and the groups' device: of what it gives."""
        ready: dict[str, torch.Tensor] = {}
        for name in self.shapes:
            if name not in ready:
                entry = self._by_tensor[name]
                ready |= zip(entry.tensors, self._merged(entry, of, dtype, groups), strict=True)
            yield name, ready.pop(name)

    def _merged(self, entry: Entry, of: OfPlace, dtype: torch.dtype, groups: Gatherers) -> list[torch.Tensor]:
        if entry.stage != self._ranks.stage:
            wholes = [torch.empty(self.shapes[name], dtype=dtype, device=groups.device) for name in entry.tensors]
        elif entry.of_experts:
            wholes = self._merged_experts(entry, of, groups)
        else:
            (place,) = entry.places
            wholes = entry.cut.merge(gathered(of(place, False), groups.cut(False)), self.sizes)
        return [groups.from_stage(whole.contiguous(), entry.stage) for whole in wholes]

    def _merged_experts(self, entry: Entry, of: OfPlace, groups: Gatherers) -> list[torch.Tensor]:
        """One tensor with all experts of a layer."""
        own = torch.stack([of(place, True) for place in entry.places])
        cut = gathered(own, groups.cut(True))
        merged = [entry.cut.merge([part[number] for part in cut], self.sizes)[0] for number in range(len(own))]
        return [torch.cat(gathered(torch.stack(merged), groups.expert))]
