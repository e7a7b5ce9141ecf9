"""The seam between the learner process and the library that trains the model.

A backend is a plain synchronous object, one for each rank. Every method marked *collective* is called by
all ranks, in the same order. It knows packs and tensors; leases, queues, versions and rewards are not its
business.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from streamrl.algorithms.aggregation import Denominators
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch


class LearnerBackend(Protocol):
    """One model, one optimizer.

    Example:
        metrics = backend.step(pack(rows, advantages, max_tokens), count_targets(whole_batch))
        for name, tensor in backend.iter_hf_weights():
            publisher.add(name, tensor)
    """

    @property
    def steps_done(self) -> int:
        """Steps taken, each of one update or several."""
        ...

    def logprobs(self, packs: Sequence[PackedBatch]) -> list[torch.Tensor]:
        """Collective. float32 [K] for each pack: log-probs of its targets under the weights as they are."""
        ...

    def step(self, packs: Sequence[PackedBatch], total: Denominators) -> dict[str, float]:
        """Collective. One step of one update on this rank's packs: `step_batch` with them as its one share."""
        ...

    def step_batch(self, mini_batches: Sequence[MiniBatch], epochs: int = 1) -> dict[str, float]:
        """Collective. One step: an optimizer update for each mini-batch in order, and all of it `epochs` times.

        A share's gradients are summed over the ranks before the next share's are added. Every rank gives as many
        mini-batches and shares; packs may be of different number, or none. Returns metrics of the whole batch, equal
        on all ranks: means over the updates.

        Raises NonFiniteError, on every rank, when a loss, a metric or the gradient norm is not finite. The update that
        it belongs to is not made and `steps_done` is as before; updates before it in this step are made, so a step of
        several leaves a backend that only `load_state` makes whole again.
        """
        ...

    def iter_hf_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. Every weight whole, in the model's order, under its Hugging Face name, in the dtype
        that the engine serves. A tensor may share memory with the model: copy it before the next step.
        Raises NonFiniteError, on every rank, for a weight that is not finite."""
        ...

    def weight_digest(self) -> str:
        """Collective. One digest over what `iter_hf_weights` gives."""
        ...

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. Everything that `load_state` needs, whole tensors one by one, in a fixed order."""
        ...

    def state_extra(self) -> dict[str, Any]:
        """The rest of the state, as JSON values."""
        ...

    def load_state(self, tensor: Callable[[str], torch.Tensor], extra: dict[str, Any]) -> None:
        """Become exactly what was saved. `tensor(name)` gives a whole tensor of `state_tensors`; the number
        of ranks may differ from the one that saved."""
        ...


class StatefulBackend(LearnerBackend, Protocol):
    """One whose state has a size that is known before it is made."""

    @property
    def state_bytes(self) -> int:
        """Bytes of `state_tensors` after an update, whole."""
        ...


class PublishedPolicy(Protocol):
    """The policy of a backend, as the part sees it that publishes versions of it, in a thread of its own.

    dtype, version_dtype: of the weights, and of the tensors that a version holds. num_parameters, num_tensors: of what
    is trained; num_base_parameters, num_base_tensors: of what is not, over all ranks.
    """

    dtype: torch.dtype
    version_dtype: torch.dtype
    hidden_size: int

    @property
    def num_parameters(self) -> int: ...

    @property
    def num_tensors(self) -> int: ...

    @property
    def num_base_parameters(self) -> int: ...

    @property
    def num_base_tensors(self) -> int: ...

    def snapshot(self) -> Mapping[str, torch.Tensor]:
        """Copies of this rank's part of what a version holds, which later steps leave as they are. The next call writes
        over them."""
        ...

    def gather(self, snapshot: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective, on groups of its own: a thread may gather a snapshot while another one trains. Whole tensors in
        the memory of the CPU, under the names that engines have for them."""
        ...

    def gather_base(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective, as `gather`. The parameters that are not trained."""
        ...

    def iter_version(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective, among the steps. What a version of the weights as they are would hold."""
        ...
