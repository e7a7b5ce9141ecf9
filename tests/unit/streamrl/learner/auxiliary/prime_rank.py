"""One rank of a policy with an implicit reward model, for the tests: a program of its own, since a process is one rank.

    python prime_rank.py STORE RANK WORLD OUT

As `critic_rank`: two shares, whatever the number of ranks; then as many shares as ranks, with models whose sizes divide
by nothing. Last, a token of a row of the last rank has a reward that is NaN. OUT gets what each gave, as JSON.
"""

import json
import sys
from pathlib import Path

import torch
from critic_rank import EPOCHS, EVEN_SIZES, OPTIMIZER, STEPS, TOTAL_STEPS, cut_of
from support.learner.turns import make_model, make_turns

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import PrimeConfig
from streamrl.errors import NonFiniteError
from streamrl.learner.auxiliary.auxiliary import step_of_both
from streamrl.learner.auxiliary.on_fsdp import implicit_rewards_on_fsdp
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.frozen import FrozenPolicy

PRIME = PrimeConfig(beta=0.5, gamma=0.98, normalise=True, whiten=True, optimizer=OPTIMIZER)
EMBEDDING = "model.embed_tokens.weight"


class Rank:
    """The models of one rank. The head is its own, so that one token's embedding is in no other's log-prob."""

    def __init__(self, group: LearnerGroup, **sizes: int) -> None:
        def make() -> ShardedPolicy:
            return ShardedPolicy(make_model(**sizes, tied=False), group, torch.float32)

        self.group, self.model = group, make()
        self.policy: FsdpBackend = on_policy(
            make(),
            optimizer=OPTIMIZER,
            algorithm=AlgorithmConfig(advantage="prime"),
            total_steps=TOTAL_STEPS,
            temperature=0.9,
        )
        reference = FrozenPolicy(lambda: make_model(**sizes, tied=False), group, torch.float32)
        self.auxiliary = implicit_rewards_on_fsdp(self.model, reference, PRIME, TOTAL_STEPS)

    def train(self, shares: int) -> list[dict[str, float]]:
        metrics = []
        for step in range(STEPS):
            cut = cut_of(make_turns(11, step, step=step, group_size=3), shares, self.group, "prime")
            metrics.append(step_of_both(self.policy, self.auxiliary, *cut, EPOCHS))
        return metrics

    def break_last(self) -> dict[str, object]:
        """What a step says of a token that only a row of the last rank has, and for which the model has no number."""
        rows = make_turns(12, step=STEPS)
        mini_batches, parts = cut_of(rows, self.group.world_size, self.group, "prime")
        for mini_batch in mini_batches:
            for packed in mini_batch.shares[0]:
                packed.ids[packed.ids == 18] = 17
        if self.group.rank == self.group.world_size - 1:
            mini_batches[0].shares[0][0].ids[0] = 18
        whole = self.model.whole(EMBEDDING, self.model.shards[EMBEDDING]).clone()
        whole[18] = float("nan")
        with torch.no_grad():
            self.model.shards[EMBEDDING].copy_(self.model.shard_of(EMBEDDING, whole))
        before = self.policy.weight_digest()
        try:
            step_of_both(self.policy, self.auxiliary, mini_batches, parts, EPOCHS)
        except NonFiniteError as error:
            return {"raised": str(error), "same": self.policy.weight_digest() == before}
        return {"raised": "", "same": False}


def main(store: str, rank: str, world: str, out: str) -> None:
    torch.set_num_threads(1)
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=60)
    even, odd = Rank(group, **EVEN_SIZES), Rank(group)
    result = {
        "shared_metrics": even.train(2),
        "shared_digests": [even.policy.weight_digest(), even.model.weight_digest()],
        "state_digest": weight_digest(even.auxiliary.state_tensors()),
        "odd_metrics": odd.train(group.world_size),
        "broken": odd.break_last(),
    }
    Path(out).write_text(json.dumps(result), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
