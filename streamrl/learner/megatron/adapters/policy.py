"""`streamrl.learner.model.adapters.AdapterPolicy` on megatron-core.

Guarantees: the weights of the model get no gradient, no buffer, no optimizer state and no change. Adapters have the
names, the values at the beginning and the order that the FSDP backend gives them, and so have versions, checkpoints and
merged weights. They are float32 whatever the model's format, so they are their own masters. Needs the extra `lora`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from streamrl.learner.megatron.adapters.layers import Adapters, attach
from streamrl.learner.megatron.adapters.plan import adapted_linears
from streamrl.learner.megatron.placed import Placed
from streamrl.learner.megatron.policy import MegatronPolicy
from streamrl.learner.megatron.ranks import MegatronRanks
from streamrl.learner.megatron.weights import ModelWeights
from streamrl.learner.model.adapters import (
    AdapterSettings,
    adapter_facts,
    adapters_of,
    add_adapters,
    require_same_adapters,
)
from streamrl.models.adapters.merge import merge
from streamrl.weights.tensors import weights_digest


class MegatronAdapterPolicy(MegatronPolicy):
    """`MegatronPolicy` whose weights are those of the adapters; the model's are its base."""

    def __init__(
        self,
        model: PreTrainedModel,
        placed: Placed,
        settings: AdapterSettings,
        ranks: MegatronRanks,
        dtype: torch.dtype,
    ) -> None:
        """Collective. model: the one that was placed, which is used up. Raises ConfigError for a target that it does
        not have, or that has no place here."""
        base_digest = weights_digest((name, param.to(dtype)) for name, param in model.named_parameters())
        self._facts = adapter_facts(settings, base_digest)
        self._scale = settings.scale
        self._base = placed.weights
        hidden_size = int(model.config.hidden_size)
        super().__init__(_adapted(model, placed, settings, ranks), ranks, torch.float32, hidden_size)
        self.dtype = dtype
        self.num_base_parameters = self._base.num_elements
        self.num_base_tensors = self._base.num_tensors

    def gather_base(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective, as `gather`. The model, in `dtype`."""
        params = self._base.params
        return self._base.whole(lambda place, _: params[place].detach().cpu(), self.dtype, self._ranks.beside)

    def iter_version(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. The adapters."""
        return super().iter_hf_weights()

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.iter_hf_weights`: the model with the adapters merged, on the CPU as replicas do it."""
        adapters = {name: whole.cpu() for name, whole in self.iter_version()}
        params = self._base.params
        wholes = self._base.whole(lambda place, _: params[place].detach(), self.dtype, self._ranks.gatherers)
        return merge(((name, whole.cpu()) for name, whole in wholes), adapters, self._scale)

    def state_facts(self) -> dict[str, Any]:
        return self._facts

    def check_state(self, facts: Mapping[str, Any]) -> None:
        require_same_adapters(facts, self._facts)


def _adapted(model: PreTrainedModel, placed: Placed, settings: AdapterSettings, ranks: MegatronRanks) -> ModelWeights:
    """Freeze the chunks, and put adapters on their linear layers; what brings these together."""
    base = placed.weights
    for param in model.parameters():  # its values are in the chunks; peft asks for no more than the format
        param.data = torch.empty(0)
    add_adapters(model, settings)
    adapters = adapters_of(model)
    shapes = {name: param.shape for name, param in adapters.items()}
    linears = adapted_linears(base.plan, shapes)
    for chunk in placed.chunks:
        chunk.requires_grad_(False)
    for linear in linears:
        if linear.weight.stage == ranks.stage:
            number, _, name = linear.place.partition(".")
            own = Adapters(linear, {**base.shapes, **shapes}, base.sizes, settings, placed.settings, ranks)
            attach(placed.chunks[int(number)].get_submodule(name), own)
    plan = [entry for linear in linears for entry in linear.entries()]
    weights = ModelWeights(plan, shapes, base.sizes, placed.chunks, ranks)
    weights.load(lambda name: adapters[name].detach())
    weights.mark()
    return weights
