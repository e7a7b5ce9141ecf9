"""The weights of one rank's model chunks as those outside see them: what a version holds, snapshots, bringing them
together.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from streamrl.errors import DataError
from streamrl.learner.finite import require_finite_weight
from streamrl.learner.megatron.ranks import MegatronRanks
from streamrl.learner.megatron.weights import ModelWeights


class MegatronPolicy:
    """`PublishedPolicy` of the megatron backend. All parameters are trained, so there is no base."""

    num_base_parameters: int = 0
    num_base_tensors: int = 0

    def __init__(self, weights: ModelWeights, ranks: MegatronRanks, dtype: torch.dtype, hidden_size: int) -> None:
        self.weights = weights
        """Those that are trained, in `version_dtype`."""
        self._ranks = ranks
        self.dtype = self.version_dtype = dtype
        self.hidden_size = hidden_size
        self._copies: dict[str, torch.Tensor] = {}

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters, over all ranks."""
        return self.weights.num_elements

    @property
    def num_tensors(self) -> int:
        """Of a version."""
        return self.weights.num_tensors

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of this rank's parts, which later steps leave as they are. The next call writes over them."""
        params = self.weights.params
        if not self._copies:
            self._copies = {place: torch.empty_like(param) for place, param in params.items()}
        with torch.no_grad():
            for place, param in params.items():
                self._copies[place].copy_(param)
        return self._copies

    def gather(self, snapshot: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective, on groups of its own: a thread may gather a snapshot while another one trains. In the memory of
        the CPU."""
        return self.weights.whole(lambda place, _: snapshot[place].cpu(), self.version_dtype, self._ranks.beside)

    def gather_base(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Nothing."""
        return iter(())

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As `LearnerBackend.iter_hf_weights`."""
        params = self.weights.params
        wholes = self.weights.whole(lambda place, _: params[place].detach(), self.version_dtype, self._ranks.gatherers)
        for name, whole in wholes:
            require_finite_weight(name, whole)
            yield name, whole

    def iter_version(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. What a version of the weights as they are would hold."""
        return self.iter_hf_weights()

    def state_facts(self) -> dict[str, Any]:
        """What belongs to the state beside the trained weights, as JSON values."""
        return {}

    def check_state(self, facts: Mapping[str, Any]) -> None:
        """Raise DataError when a state with these facts belongs to another policy."""
        if "adapters" in facts:
            raise DataError("the learner state is of adapters (learner.lora), and this learner trains all weights")
