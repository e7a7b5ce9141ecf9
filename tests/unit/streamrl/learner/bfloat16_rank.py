"""One rank that computes in bfloat16, for the tests: the gradients of packs, together over ranks, or each by itself.

    python bfloat16_rank.py STORE RANK WORLD OUT

Each of two ranks takes two packs, of which the first keeps its gradients back. One rank takes all packs one by one. OUT
gets the gradients by name as JSON, a list of them for one rank.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from support.learner.learner_rank import make_batch, make_model

from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import open_group

PACKS = 4


def packs() -> list[PackedBatch]:
    """The same on every rank; of unequal weight, so that a sum in few bits would lose some of them."""
    made = []
    for step in range(PACKS):
        rows = make_batch(step, groups=2)
        made += pack(rows, np.ones(rows.num_rows), 10**6)
    return made


def gradients(policy: ShardedPolicy, some: list[PackedBatch]) -> dict[str, list[float]]:
    """Of the sum of all log-probs, whole, as the ranks have them together."""
    for number, one in enumerate(some, start=1):
        policy.set_gradient_sync(number == len(some))
        policy.module(one, 1.0)[0].sum().backward()
    policy.collect_gradients()
    found = {name: policy.whole(name, shard.grad).flatten().tolist() for name, shard in policy.shards.items()}
    policy.clear_gradients()
    return found


def main(store: Path, rank: int, world: int, out: Path) -> None:
    torch.set_num_threads(1)
    group = open_group(rank, world, store, device=torch.device("cpu"))
    policy, each = ShardedPolicy(make_model(), group, torch.bfloat16), packs()
    if world == 1:
        found = {"alone": [gradients(policy, [one]) for one in each]}
    else:
        share = PACKS // world
        found = {"together": gradients(policy, each[rank * share : (rank + 1) * share])}
    group.close()
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
