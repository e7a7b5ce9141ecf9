"""Which linear layer of megatron-core has which adapters, and how they are cut over the tensor ranks. Pure: no ranks,
no megatron-core.

An adapter changes the weight of one Hugging Face projection, also where megatron-core has several in one layer. Of a
layer that is cut by its outputs A is whole on each rank, and B is cut as the outputs are. Of one that is cut by its
inputs A is cut as the inputs are, and B is whole.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from streamrl.errors import ConfigError
from streamrl.learner.megatron.cuts import COLUMNS, FUSED_GATE_UP, GATE_UP, HEADS, ROWS, WHOLE, Cut
from streamrl.learner.megatron.plan import Entry
from streamrl.models.adapters.names import adapted_weight, adapter_of

_CUTS: dict[Cut, tuple[Cut, Cut]] = {
    COLUMNS: (COLUMNS, WHOLE),
    HEADS: (WHOLE, ROWS),
    GATE_UP: (WHOLE, ROWS),
    FUSED_GATE_UP: (WHOLE, FUSED_GATE_UP),
}
"""How A and B of a projection are cut, by the cut of the layer's weight."""


@dataclass(frozen=True, slots=True)
class AdaptedLinear:
    """A linear layer with adapters. weight: the entry of its weight. names: the Hugging Face tensors with an adapter,
    among those that the weight is made of."""

    weight: Entry
    names: frozenset[str]

    @property
    def place(self) -> str:
        """Of the layer: the number of its chunk, and its name there."""
        return self.weight.places[0].removesuffix(".weight")

    @property
    def by_inputs(self) -> bool:
        """Whether the layer is cut by its inputs."""
        return self.weight.cut is COLUMNS

    @property
    def projections(self) -> tuple[tuple[str, str], ...]:
        """(short name, tensor) of all projections in the layer, in the order of its outputs."""
        return tuple((_short(tensor), tensor) for tensor in self.weight.tensors)

    def pair(self, tensor: str) -> tuple[Entry, Entry]:
        """The entries of the A and the B that change a tensor."""
        cuts, names = _CUTS[self.weight.cut], adapter_of(tensor)
        places = (f"{self.place}.adapters.{_short(tensor)}.{part}" for part in ("lora_a", "lora_b"))
        lora_a, lora_b = (
            replace(self.weight, tensors=(name,), places=(place,), cut=cut)
            for name, place, cut in zip(names, places, cuts, strict=True)
        )
        return lora_a, lora_b

    def entries(self) -> Iterator[Entry]:
        """Of all its adapters."""
        for _, tensor in self.projections:
            if tensor in self.names:
                yield from self.pair(tensor)


def _short(tensor: str) -> str:
    return tensor.removesuffix(".weight").rpartition(".")[2]


def adapted_linears(plan: Sequence[Entry], adapters: Collection[str]) -> tuple[AdaptedLinear, ...]:
    """plan: of the model's weights. adapters: the names of all tensors of adapters. Raises ConfigError for one on a
    weight that is cut in a way that adapters have none for."""
    wanted = {adapted_weight(name) for name in adapters}
    found = []
    for entry in plan:
        names = frozenset(wanted.intersection(entry.tensors))
        if names and entry.exported:
            if entry.cut not in _CUTS or entry.of_experts:
                raise ConfigError(
                    f'learner.lora.targets: under learner.backend = "megatron" there are no adapters on '
                    f"{', '.join(sorted(names))}, whose cut over the ranks is {type(entry.cut).__name__}; name other "
                    "layers"
                )
            found.append(AdaptedLinear(entry, names))
    return tuple(found)


def in_groups(parts: Sequence[torch.Tensor], groups: int) -> torch.Tensor:
    """The outputs of a fused layer, [..., all], from those of its projections, [..., own] each: for each of `groups`
    the first one's, then the second one's, and so on. With one group they stand one behind the other."""
    return torch.cat([part.unflatten(-1, (groups, -1)) for part in parts], -1).flatten(-2)
