"""One rank of a learner whose packs are spread over ranks, for the tests.

    python sequence_rank.py STORE RANK WORLD FOLDER OUT

The ranks form the meshes of `MESHES`, one after the other, each in a group of its own. OUT gets JSON.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.learner.learner_rank import make_batch
from support.learner.tensor_rank import FAMILIES, STEPS, make_backend, make_model, train

from streamrl.algorithms.aggregation import Denominators
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import ExecutionConfig, OptimizerConfig
from streamrl.learner.batch.packing import PackedBatch, empty_pack, pack
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.adapters import AdapterPolicy, AdapterSettings
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.model.value_model import ShardedCritic, decoder_of
from streamrl.learner.parallel.process_group import LearnerGroup, open_group

MESHES = {
    1: [(1, 1, tuple(FAMILIES))],
    2: [(2, 1, tuple(FAMILIES))],
    4: [(2, 1, ("qwen2",)), (2, 2, ("llama",)), (4, 1, ("qwen3",))],
}
"""Ranks of a pack, ranks of a layer, and the models that are trained, by the number of ranks. The models have four
heads and two key heads."""


def packs_of(step: int, most: int) -> list[PackedBatch]:
    """The same on every rank."""
    rows = make_batch(step)
    return pack(rows, torch.linspace(-1, 1, rows.num_rows).double().numpy(), most)


def train_family(group: LearnerGroup, family: str, folder: Path) -> dict[str, Any]:
    backend = make_backend(group, family)
    metrics = train(backend, STEPS)
    weights = {name: tensor.clone() for name, tensor in backend.iter_hf_weights()}
    gathered = weight_digest(backend.policy.gather(backend.policy.snapshot()))
    if group.rank == 0:
        save_file(weights, folder / f"{family}_{mesh_name(group)}.safetensors")
    return {"metrics": metrics, "digest": backend.weight_digest(), "gathered": gathered}


def mesh_name(group: LearnerGroup) -> str:
    return f"{group.data_size}x{group.sequence_size}x{group.tensor_size}"


def looked_at(group: LearnerGroup) -> dict[str, Any]:
    """Log-probs of packs of many rows, of a row each, and of fewer tokens than ranks; a critic's values."""
    backend, critic = make_backend(group, "qwen3"), ShardedCritic(decoder_of(make_model("llama")), group, torch.float32)
    with torch.no_grad():
        critic.shards["score.weight"] += 0.1
    packs = [*packs_of(0, 64), *packs_of(1, 16), *packs_of(2, 10**6), tiny_pack(), empty_pack()]
    with torch.no_grad():
        values = [critic.module(each) for each in packs]
    return {"logprobs": listed(backend.logprobs(packs)), "values": listed(values)}


def tiny_pack() -> PackedBatch:
    """One token that predicts one target."""
    one, place = torch.tensor([3]), torch.tensor([0])
    values = torch.tensor([0.5])
    return PackedBatch(one, place, empty_pack().layout, place, one, -values, values, values, values, place)


def listed(tensors: Sequence[torch.Tensor]) -> list[list[float]]:
    return [tensor.tolist() for tensor in tensors]


def train_rows(group: LearnerGroup) -> list[dict[str, float]]:
    """A loss that is by rows, with an entropy bonus, in packs down to a token: a step on each."""
    backend = on_policy(
        ShardedPolicy(make_model("qwen3"), group, torch.float32),
        optimizer=OptimizerConfig(lr=3e-3, max_grad_norm=0.5, eps=1e-4),
        algorithm=AlgorithmConfig(loss="gspo", entropy_coef=0.01, correction_level="sequence"),
        total_steps=40,
        temperature=0.9,
    )
    metrics = []
    for step in range(3):
        packs = packs_of(step, 40) if group.data_rank == 0 else []
        if group.data_rank == 0 and step == 2:
            packs = [tiny_pack()]
        total = count_targets(make_batch(step)) if step < 2 else Denominators(tokens=1, rows=1)
        metrics.append(backend.step(packs, total))
    return metrics


def train_adapters(group: LearnerGroup) -> list[dict[str, float]]:
    settings = AdapterSettings(4, 8.0, ("q_proj", "down_proj"), 3)
    backend: FsdpBackend = on_policy(
        AdapterPolicy(make_model("qwen3"), group, torch.float32, settings),
        optimizer=OptimizerConfig(lr=3e-3, max_grad_norm=0.5, eps=1e-4),
        algorithm=AlgorithmConfig(),
        total_steps=40,
        temperature=0.9,
    )
    return train(backend, 3)


def in_bfloat16(group: LearnerGroup) -> list[list[float]]:
    """Log-probs of a model that computes in 16 bits."""
    policy = ShardedPolicy(make_model("qwen3"), group, torch.bfloat16)
    with torch.no_grad():
        return listed([policy.module(each, 0.9)[0] for each in packs_of(0, 64)])


def all_of_it(group: LearnerGroup, families: Sequence[str], folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {family: train_family(group, family, folder) for family in families}
    again = make_backend(group, "qwen3", ExecutionConfig(activation_checkpointing=True))
    found["checkpointed"] = {"metrics": train(again, STEPS), "digest": again.weight_digest()}
    found |= {"rows": train_rows(group), "bfloat16": in_bfloat16(group)}
    if group.tensor_size == 1:
        found["adapters"] = train_adapters(group)
    return {**found, **looked_at(group)}


def main(store: str, rank: str, world: str, folder: str, out: str) -> None:
    torch.set_num_threads(1)
    found = {}
    for number, (sequence, tensor, families) in enumerate(MESHES[int(world)]):
        group = open_group(
            int(rank),
            int(world),
            Path(f"{store}_{number}"),
            device=torch.device("cpu"),
            timeout_s=200,
            tensor_size=tensor,
            sequence_size=sequence,
        )
        found[mesh_name(group)] = all_of_it(group, families, Path(folder))
        group.close()
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
