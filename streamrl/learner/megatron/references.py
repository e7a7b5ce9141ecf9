"""Policies that are not trained, in the layout of the one that is: one that stays as it is, and a moving average.

Guarantees: no gradient; weights are read when they are first asked for, so that they may be those that a warm-up
leaves; an average moves as `AveragedPolicy` does, and its state goes from one backend or layout to another. Each rank
keeps its part of the average in float32.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from streamrl.config.schema.learner import MegatronConfig
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.megatron.families import FAMILIES
from streamrl.learner.megatron.pipeline import logprobs_of
from streamrl.learner.megatron.placed import Placed, place
from streamrl.learner.megatron.ranks import MegatronRanks
from streamrl.learner.megatron.weights import OfPlace
from streamrl.learner.references.averaged import moves_of, moves_state


class MegatronReference:
    """Example:
    reference = MegatronReference(lambda: load_model(folder, "bfloat16"), ranks, config, torch.bfloat16)
    logprobs = reference.logprobs(packs, temperature=1.0)
    """

    def __init__(
        self, load: Callable[[], PreTrainedModel], ranks: MegatronRanks, megatron: MegatronConfig, dtype: torch.dtype
    ) -> None:
        """load: gives the model, the same on every rank. dtype: of the forward."""
        self._load = load
        self._ranks = ranks
        self._megatron = megatron
        self._dtype = dtype
        self._placed: Placed | None = None

    def placed(self) -> Placed:
        """Collective at the first call, which loads it."""
        if self._placed is None:
            self._placed = place(self._load(), FAMILIES, self._megatron, self._dtype, self._ranks)
            for chunk in self._placed.chunks:
                chunk.eval().requires_grad_(False)
        return self._placed

    def logprobs(self, packs: Sequence[PackedBatch], temperature: float) -> list[torch.Tensor]:
        """Collective. float32 [K] for each pack, on the CPU: log-probs of its targets."""
        return logprobs_of(self.placed().chunks, packs, self._ranks, temperature)


class AveragedReference(MegatronReference):
    """`AveragedPolicy` on megatron-core."""

    def __init__(
        self,
        load: Callable[[], PreTrainedModel],
        ranks: MegatronRanks,
        megatron: MegatronConfig,
        dtype: torch.dtype,
        *,
        every: int,
        decay: float,
    ) -> None:
        """every, decay: as `AveragedPolicy` has them."""
        super().__init__(load, ranks, megatron, dtype)
        self._every = every
        self._decay = decay
        self._moves = 0
        self._average: dict[str, torch.Tensor] = {}

    def _parts(self) -> dict[str, torch.Tensor]:
        """This rank's parts of the average by place, in float32. Collective at the first call."""
        params = self.placed().weights.params
        if not self._average:
            self._average = {place: param.detach().float().clone() for place, param in params.items()}
        return self._average

    @torch.no_grad()
    def follow(self, steps_done: int, trained: OfPlace) -> None:
        """Collective. Take in the trained weights, if a move is due after so many steps. trained: gives this rank's
        part of each, in float32."""
        if steps_done % self._every:
            return
        parts = self._parts()
        for entry, number, param in self.placed().weights.own():
            place = entry.places[number]
            mine = trained(place, entry.of_experts)
            parts[place].mul_(self._decay).add_(mine, alpha=1.0 - self._decay)
            param.copy_(parts[place])
        self._moves += 1

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. As `AveragedPolicy.state_tensors`."""
        if self._moves:
            parts, weights = self._parts(), self.placed().weights
            for name, whole in weights.whole(lambda place, _: parts[place], torch.float32, self._ranks.gatherers):
                yield f"reference/{name}", whole

    def state_facts(self) -> dict[str, Any]:
        """As `AveragedPolicy.state_facts`."""
        return moves_state(self._moves)

    def load_state(self, tensor: Callable[[str], torch.Tensor], facts: Mapping[str, Any]) -> None:
        """As `AveragedPolicy.load_state`."""
        moves = moves_of(facts)
        if moves:
            weights, parts = self.placed().weights, self._parts()
            weights.load(lambda name: tensor(f"reference/{name}"))
            for entry, number, _ in weights.own():
                whole = weights.part(entry, number, lambda name: tensor(f"reference/{name}"))
                parts[entry.places[number]].copy_(whole)
        self._moves = moves
