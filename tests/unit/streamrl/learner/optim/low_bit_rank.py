"""One rank of a learner whose moments are of 8 bits, for the tests.

    python low_bit_rank.py STORE RANK WORLD FOLDER OUT

Two ranks train, save into FOLDER, and go on; one rank loads that, saves it again, and goes on; two ranks that find that
load it and go on. All train on two shares. A critic does the same beside it, whose head has one row: the second rank
has nothing of it. OUT gets JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from support.learner.learner_rank import make_model, save, train_on_two_shares

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.checkpoint import checkpoint
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.model.value_model import ShardedCritic, decoder_of
from streamrl.learner.objectives import nll_loss
from streamrl.learner.parallel.process_group import LearnerGroup, open_group

STEPS = 4
SIZES = {"hidden_size": 128, "intermediate_size": 200, "head_dim": 32}
"""Rows of two whole blocks, but 96 in the output of attention and 200 in that of the MLP. Of the 19 rows of the
embeddings the first of two ranks has 10."""
OPTIMIZER = OptimizerConfig(kind="adamw_8bit", lr=3e-3, warmup_steps=3, weight_decay=0.01, max_grad_norm=0.5)


def make_both(group: LearnerGroup) -> dict[str, FsdpBackend]:
    """The critic's state is moved by gradients of the test's: nothing of its loss is looked at."""
    policy = ShardedPolicy(make_model(**SIZES), group, torch.float32)
    critic = ShardedCritic(decoder_of(make_model(**SIZES)), group, torch.float32)
    return {
        "policy": on_policy(policy, optimizer=OPTIMIZER, algorithm=AlgorithmConfig(), total_steps=40, temperature=0.9),
        "critic": FsdpBackend(critic, nll_loss, OPTIMIZER, total_steps=40),
    }


def push(critic: FsdpBackend, steps: int) -> None:
    """Updates by the same gradients whatever the number of ranks."""
    for _ in range(steps):
        for name, shard in critic.policy.shards.items():
            torch.manual_seed(critic.steps_done)
            whole = torch.randn(critic.policy._params[name].shape)
            shard.grad = critic.policy.shard_of(name, whole)
        critic._optimizer.step()
        critic.policy.clear_gradients()
        critic._steps_done += 1
        critic._updates_done += 1


def go_on(backends: dict[str, FsdpBackend]) -> dict[str, Any]:
    norms = [metric["grad/norm"] for metric in train_on_two_shares(backends["policy"], STEPS)]
    push(backends["critic"], STEPS)
    return {"norms": norms, **{model: weight_digest(each.state_tensors()) for model, each in backends.items()}}


def save_both(backends: dict[str, FsdpBackend], folder: Path, name: str) -> None:
    for model, backend in backends.items():
        save(backend, folder / f"{name}_{model}")


def load_both(backends: dict[str, FsdpBackend], folder: Path, name: str) -> None:
    """As a learner does when it resumes, with the proof."""
    for model, backend in backends.items():
        info = checkpoint.find_newest(folder / f"{name}_{model}").newest
        assert info is not None
        backend.load_state(info.tensor, info.extra)
        checkpoint.prove_loaded(info, backend.state_tensors())


def main(store: str, rank: str, world: str, folder_name: str, out: str) -> None:
    torch.set_num_threads(1)
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=60)
    folder, result, both = Path(folder_name), dict[str, Any](), make_both(group)
    if (folder / "one_critic").exists():
        load_both(both, folder, "one")
    elif group.world_size == 2:
        result["first"] = go_on(both)
        save_both(both, folder, "two")
    else:
        result["first"] = go_on(both)
        both = make_both(group)
        load_both(both, folder, "two")
        save_both(both, folder, "one")
    result["then"] = go_on(both)
    Path(out).write_text(json.dumps(result), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
