"""A reference that follows the trained policy slowly: an exponential moving average of its weights.

Guarantees: it begins with the weights that it loads, moves only when it is told to, and is part of the learner's state:
restored, its log-probs are to the bit those that it had. Each rank averages its own shards, in float32. Source:
Gorbatovski et al. 2024, Learn your reference model; TRL has it as `sync_ref_model`, whose weight is the other share.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.errors import DataError
from streamrl.learner.model.sharding import PLAIN
from streamrl.learner.parallel.process_group import LearnerGroup
from streamrl.learner.references.frozen import FrozenPolicy

_STATE = "reference_moves"


class AveragedPolicy(FrozenPolicy):
    """Example:
    average = AveragedPolicy(load, group, torch.float32, every=10, decay=0.95)
    average.follow(step, policy.shards)         # after each optimizer step
    """

    def __init__(
        self,
        load: Callable[[], PreTrainedModel],
        group: LearnerGroup,
        dtype: torch.dtype,
        execution: ExecutionConfig = PLAIN,
        *,
        every: int,
        decay: float,
    ) -> None:
        """every: steps between two moves. decay: share of the average that a move keeps."""
        super().__init__(load, group, dtype, execution)
        self._every = every
        self._decay = decay
        self._moves = 0

    @torch.no_grad()
    def follow(self, steps_done: int, shards: Mapping[str, torch.Tensor]) -> None:
        """Take in the trained weights, this rank's part of them, if a move is due after so many steps."""
        if steps_done % self._every:
            return
        average = self.sharded()
        for name, mine in average.shards.items():
            mine.mul_(self._decay).add_(shards[name], alpha=1.0 - self._decay)
        average.forget_gathered()
        self._moves += 1

    def state_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Collective. `reference/<name>`, whole and in float32; nothing while it is what it loads."""
        if self._moves:
            for name, whole in self.sharded().iter_weights():
                yield f"reference/{name}", whole

    def state_facts(self) -> dict[str, Any]:
        """What belongs to the state beside the tensors, as JSON values."""
        return moves_state(self._moves)

    def load_state(self, tensor: Callable[[str], torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Become what was saved. Raises DataError for the state of a learner without an average."""
        moves = moves_of(facts)
        if moves:
            self.sharded().load_weights(lambda name: tensor(f"reference/{name}"))
        self._moves = moves


def moves_state(moves: int) -> dict[str, Any]:
    """The facts of a state in which an average has made so many moves."""
    return {_STATE: moves}


def moves_of(facts: Mapping[str, Any]) -> int:
    """How many moves the average of a state has made. Raises DataError for the state of a learner without one."""
    moves = facts.get(_STATE)
    if not isinstance(moves, int):
        raise DataError("the learner state has no moving average, and this learner's reference is one")
    return moves
