"""What the objective knows of single tokens, taken as a step goes by. It changes nothing of the step.

Guarantees: packs are taken in the order in which they are trained, in the first pass over them alone; once `most`
tokens are taken, no further pack is. What is taken is a copy, on the device of the pack, so no graph is kept alive.
"""

from typing import NamedTuple

import torch

from streamrl.learner.batch.packing import PackedBatch
from streamrl.observability.token_figures import CLIPPED, REJECTED, TRUNCATED
from streamrl.types import FloatArray


class TokenOutcome(NamedTuple):
    """Of the targets of a pack, [K] each, without gradient. logprobs, entropies: float32, nats. clipped, truncated,
    rejected: bool, as in `TokenFacts`."""

    logprobs: torch.Tensor
    entropies: torch.Tensor
    clipped: torch.Tensor
    truncated: torch.Tensor
    rejected: torch.Tensor


class TokenWatch:
    """Example:
    watch = TokenWatch(most=16_384)
    watch.begin(packs=12)
    watch(pack, outcome)                      # by the objective, for each pack
    for columns in watch.taken(): ...
    """

    def __init__(self, most: int) -> None:
        """most: tokens of one step, and those of the pack that reaches it."""
        self._most = most
        self._taken: list[torch.Tensor] = []
        self._packs = 0
        self._tokens = 0

    def begin(self, packs: int) -> None:
        """A step begins, with so many packs that have targets in each pass over them."""
        self._taken, self._packs, self._tokens = [], packs, 0

    def __call__(self, pack: PackedBatch, outcome: TokenOutcome) -> None:
        # A pack without targets only keeps the ranks in step.
        if not pack.num_targets or not self._packs:
            return
        self._packs -= 1
        if self._tokens >= self._most:
            self._packs = 0
            return
        self._tokens += pack.num_targets
        flags = CLIPPED * outcome.clipped + TRUNCATED * outcome.truncated + REJECTED * outcome.rejected
        columns = (outcome.logprobs, outcome.entropies, pack.advantages, flags)
        self._taken.append(torch.stack([column.detach().float() for column in columns]))

    def taken(self) -> list[FloatArray]:
        """Of each pack that was taken, in order, float32 [4, K]: log-probs, entropies, advantages, flags."""
        return [columns.cpu().numpy() for columns in self._taken]
