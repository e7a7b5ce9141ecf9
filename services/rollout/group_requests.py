"""What a replica asks its engine for, of the groups that it has taken: one request for each rollout.

The prompt of a ticket is the task's, or one that a client submitted, whose text the queue has. What a request samples
follows from its rollout's id and the run's seed alone, so another attempt draws the same.
"""

import time
from collections.abc import Sequence

from ray.actor import ActorHandle

from streamrl.algorithms.group_sampling import GroupSampling
from streamrl.config import Config
from streamrl.config.schema.streams import TASK
from streamrl.ids import group_id, rollout_id, rollout_seed
from streamrl.services.rollout.rows import Issued
from streamrl.tasks.base import Prompt
from streamrl.tasks.prompts import EncodedPrompts
from streamrl.types import GenerationRequest, IntArray, Ticket


class GroupRequests:
    """See the module. stop_ids: of tokens that end a rollout."""

    def __init__(
        self,
        config: Config,
        prompts: EncodedPrompts,
        stop_ids: tuple[int, ...],
        sampling: GroupSampling,
        queue: ActorHandle,
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._stop_ids = stop_ids
        self._sampling = sampling
        self._queue = queue

    async def of(self, tickets: Sequence[Ticket]) -> list[tuple[Issued, GenerationRequest]]:
        """The requests of these groups; none for one whose submitted prompt was given up meanwhile."""
        items = [ticket.data_index for ticket in tickets if ticket.submitted]
        submitted = dict(zip(items, await self._queue.prompts.remote(items), strict=True)) if items else {}
        requests = []
        for ticket in tickets:
            if not ticket.submitted:
                requests += self._of_group(ticket, TASK, *self._prompts.at(ticket.data_index))
            elif (given := submitted[ticket.data_index]) is not None:
                requests += self._of_group(ticket, given.stream, *self._prompts.of(given.prompt))
        return requests

    def _of_group(
        self, ticket: Ticket, stream: str, prompt: Prompt, prompt_ids: IntArray
    ) -> list[tuple[Issued, GenerationRequest]]:
        group = group_id(prompt.prompt_id, ticket.data_pass)
        now = time.time_ns()
        requests = []
        for sample_index in range(self._config.rollout.group_size):
            rollout = rollout_id(group, sample_index)
            issued = Issued(
                ticket, sample_index, group, prompt.prompt_id, prompt_ids, prompt.payload, now, stream, prompt.text
            )
            seed = rollout_seed(self._config.seed, rollout)
            sampling = self._sampling.of(sample_index)
            requests.append((issued, GenerationRequest(rollout, prompt_ids, seed, sampling, self._stop_ids)))
        return requests
