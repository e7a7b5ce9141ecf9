"""A policy that is not trained, such as the one that the trained policy is held to.

Guarantees: sharded over the ranks as the trained one is, and in the same number format; no gradient. Its weights are
read when it is first called, so that they may be those that a warm-up leaves.
"""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.model.sharding import PLAIN, ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup


class FrozenPolicy:
    """Called as `PolicyModel` is. Collective: every rank calls it as often.

    Example:
        reference = FrozenPolicy(lambda: load_model(folder, "bfloat16"), group, torch.bfloat16)
        logprobs_K, _ = reference(pack, temperature=1.0)
    """

    def __init__(
        self,
        load: Callable[[], PreTrainedModel],
        group: LearnerGroup,
        dtype: torch.dtype,
        execution: ExecutionConfig = PLAIN,
    ) -> None:
        """load: gives the model, the same on every rank. dtype: of the forward."""
        self._load = load
        self._group = group
        self._dtype = dtype
        self._execution = execution
        self._policy: ShardedPolicy | None = None

    def sharded(self) -> ShardedPolicy:
        """Its weights, loaded by the first call. Collective then."""
        if self._policy is None:
            self._policy = ShardedPolicy(self._load(), self._group, self._dtype, self._execution)
        return self._policy

    @torch.no_grad()
    def __call__(self, pack: PackedBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs_K, entropy_K = self.sharded().module(pack, temperature)
        return logprobs_K, entropy_K
