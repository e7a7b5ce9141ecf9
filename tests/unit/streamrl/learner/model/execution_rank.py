"""One rank of a learner under each way to compute a layer, for the tests.

    python execution_rank.py STORE RANK WORLD (all | compiled) OUT

Trains five steps under each, of all weights and of adapters, on two shares; or under the plain one and a compiled one
only. OUT gets metrics and digest as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from support.learner.learner_rank import EVEN_SIZES, make_model, train_on_two_shares
from torch._dynamo.utils import counters

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import ExecutionConfig, OptimizerConfig
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.adapters import AdapterPolicy, AdapterSettings
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup, open_group

STEPS = 5
WAYS = {
    "plain": ExecutionConfig(),
    "activation_checkpointing": ExecutionConfig(activation_checkpointing=True),
    "offload": ExecutionConfig(offload=True),
    "both": ExecutionConfig(activation_checkpointing=True, offload=True),
    "every pack": ExecutionConfig(reduce_every_pack=True),
}
COMPILED = {"plain": ExecutionConfig(), "compiled": ExecutionConfig(compile=True, activation_checkpointing=True)}
ADAPTERS = AdapterSettings(rank=2, alpha=4.0, targets=("q_proj", "down_proj"), seed=1)


def make_backend(policy: ShardedPolicy) -> FsdpBackend:
    return on_policy(
        policy,
        optimizer=OptimizerConfig(lr=3e-3, warmup_steps=3, weight_decay=0.01, max_grad_norm=0.5),
        algorithm=AlgorithmConfig(),
        total_steps=40,
        temperature=0.9,
    )


def count_calls(policy: ShardedPolicy) -> list[None]:
    """One entry for each time that attention is computed in the first layer."""
    calls: list[None] = []
    policy.module.model.model.layers[0].self_attn.o_proj.register_forward_hook(lambda *_: calls.append(None))
    return calls


def look_before_packs(policy: ShardedPolicy) -> list[bool]:
    """Before each backward, whether this rank's own parts of the gradients hold those of an earlier one."""
    found, told = [], policy.set_gradient_sync

    def look(last: bool) -> None:
        found.append(all(param.grad is not None for param in policy.module.parameters() if param.requires_grad))
        told(last)

    policy.set_gradient_sync = look
    return found


def run(policy: ShardedPolicy) -> dict[str, Any]:
    backend, calls, reduced = make_backend(policy), count_calls(policy), look_before_packs(policy)
    metrics = train_on_two_shares(backend, 2)
    graphs = [counters["stats"]["unique_graphs"]]
    metrics += train_on_two_shares(backend, STEPS - 2)
    graphs.append(counters["stats"]["unique_graphs"])
    names = [name for name, _ in backend.iter_hf_weights()]
    facts = {"digest": backend.weight_digest(), "calls": len(calls), "names": names, "graphs": graphs}
    facts |= {"reduced": sum(reduced), "packs": len(reduced)}
    return {"metrics": metrics, **facts}


def train_all(group: LearnerGroup, ways: dict[str, ExecutionConfig]) -> dict[str, Any]:
    found = {}
    for name, execution in ways.items():
        model = make_model(**EVEN_SIZES)
        found[name] = run(ShardedPolicy(model, group, torch.float32, execution))
        model = make_model(**EVEN_SIZES)
        found[f"adapters, {name}"] = run(AdapterPolicy(model, group, torch.float32, ADAPTERS, execution))
    return found


def main(store: str, rank: str, world: str, which: str, out: str) -> None:
    torch.set_num_threads(1)
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=600)
    Path(out).write_text(json.dumps(train_all(group, COMPILED if which == "compiled" else WAYS)), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
