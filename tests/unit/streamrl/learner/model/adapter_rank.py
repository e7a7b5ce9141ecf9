"""One rank of a learner that trains adapters, for the tests: a program of its own, since a process is one rank.

    python adapter_rank.py STORE RANK WORLD OUT

Trains on two shares, whatever the number of ranks; then adapters of rank 1, of which a second rank has no row, on a
model whose sizes divide by nothing. OUT gets what both gave, as JSON.
"""

import json
import sys
from pathlib import Path

import torch
from support.learner.learner_rank import EVEN_SIZES, TOTAL_STEPS, make_model, train, train_on_two_shares

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.adapters import AdapterPolicy, AdapterSettings
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.weights.tensors import weights_digest

STEPS = 8


def make_backend(group: LearnerGroup, rank: int, **sizes: int) -> FsdpBackend:
    settings = AdapterSettings(rank, 2.0 * rank, ("q_proj", "v_proj", "down_proj"), seed=3)
    return on_policy(
        AdapterPolicy(make_model(**sizes), group, torch.float32, settings),
        optimizer=OptimizerConfig(lr=1e-2, warmup_steps=3, weight_decay=0.01, max_grad_norm=0.5),
        algorithm=AlgorithmConfig(),
        total_steps=TOTAL_STEPS,
        temperature=0.9,
    )


def main(store: str, rank: str, world: str, out: str) -> None:
    torch.set_num_threads(1)
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=60)
    even, odd = make_backend(group, 4, **EVEN_SIZES), make_backend(group, 1)
    shared_metrics, odd_metrics = train_on_two_shares(even, STEPS), train(odd, STEPS)
    snapshot = even.policy.snapshot()
    result = {
        "shared_metrics": shared_metrics,
        "shared_digest": weights_digest(even.policy.iter_version()),
        "gathered_digest": weights_digest(even.policy.gather(snapshot)),
        "merged_digest": even.weight_digest(),
        "state_digest": weight_digest(even.state_tensors()),
        "base": [even.policy.base_digest, weights_digest(even.policy.gather_base())],
        "odd_metrics": odd_metrics,
        "odd_base": [odd.policy.base_digest, weights_digest(odd.policy.gather_base(beside=False))],
    }
    Path(out).write_text(json.dumps(result), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
