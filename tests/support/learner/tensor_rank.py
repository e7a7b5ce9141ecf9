"""One rank of a learner whose layers are spread over ranks, for the tests.

    python tensor_rank.py STORE RANK WORLD FOLDER OUT

The mesh is (WORLD / 2) x 2, or one rank. Each model of the family trains some steps; several ranks save a checkpoint
into FOLDER, one rank loads what two saved and saves it again, which two load when they find it. OUT gets JSON.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.learner.learner_rank import make_batch, save
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from streamrl.algorithms.advantages.outcome import ADVANTAGES
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import ExecutionConfig, OptimizerConfig
from streamrl.errors import NonFiniteError
from streamrl.learner.batch.balance import split_rows
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets, select_rows
from streamrl.learner.checkpoint import checkpoint
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup, open_group

STEPS = 6
FAMILIES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "llama with biases": (partial(LlamaConfig, attention_bias=True, mlp_bias=True), LlamaForCausalLM),
}


def make_model(family: str) -> PreTrainedModel:
    """A vocabulary of 19 words, which is not spread; all else divides by 4."""
    torch.manual_seed(5)
    config, model = FAMILIES[family]
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8} if family != "qwen2" else {}
    sizes = sizes or {"num_attention_heads": 4, "num_key_value_heads": 2}
    made = model(
        config(
            vocab_size=19,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            max_position_embeddings=64,
            tie_word_embeddings=family == "qwen3",
            **sizes,
        )
    )
    with torch.no_grad():
        # Norms and biases that are not all 1 and 0.
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    return made


def make_backend(group: LearnerGroup, family: str, execution: ExecutionConfig | None = None) -> FsdpBackend:
    return on_policy(
        ShardedPolicy(make_model(family), group, torch.float32, execution or ExecutionConfig()),
        # An eps under which a gradient of mere rounding does not decide a step.
        optimizer=OptimizerConfig(lr=3e-3, warmup_steps=3, weight_decay=0.01, max_grad_norm=0.5, eps=1e-4),
        algorithm=AlgorithmConfig(),
        total_steps=40,
        temperature=0.9,
    )


def train(backend: FsdpBackend, steps: int) -> list[dict[str, float]]:
    group, metrics = backend.group, []
    for _ in range(steps):
        rows = make_batch(backend.steps_done)
        advantages = ADVANTAGES["grpo"](rows.rewards, rows.valid, rows.group)
        share = split_rows(rows.lengths(), rows.group, group.data_size, 32)[group.data_rank]
        packs = pack(select_rows(rows, share), advantages[share], 64)
        metrics.append(backend.step(packs, count_targets(rows)))
    return metrics


def train_family(group: LearnerGroup, family: str, folder: Path) -> dict[str, Any]:
    backend = make_backend(group, family)
    metrics = train(backend, STEPS)
    weights = {name: tensor.clone() for name, tensor in backend.iter_hf_weights()}
    gathered = weight_digest(backend.policy.gather(backend.policy.snapshot()))
    if group.rank == 0:
        save_file(weights, folder / f"{family}_{group.world_size}.safetensors")
    return {"metrics": metrics, "digest": backend.weight_digest(), "gathered": gathered}


def reload(backend: FsdpBackend, root: Path) -> str:
    """The digest of the state after the newest checkpoint is loaded."""
    info = checkpoint.find_newest(root).newest
    assert info is not None
    backend.load_state(info.tensor, info.extra)
    return weight_digest(backend.state_tensors())


def hand_on(group: LearnerGroup, folder: Path) -> dict[str, Any]:
    """Two ranks save; one loads it, and saves it again; two load that."""
    found: dict[str, Any] = {}
    backend, spread, whole = make_backend(group, "qwen3"), folder / "of_two", folder / "of_one"
    if group.world_size == 2 and not whole.exists():
        found["before"] = train(backend, 3) and weight_digest(backend.state_tensors())
        save(backend, spread)
        found["after"] = train(backend, 2)
    elif group.world_size == 1:
        found["loaded"] = reload(backend, spread)
        save(backend, whole)
        found["after"] = train(backend, 2)
    elif group.world_size == 2:
        found["loaded"] = reload(backend, whole)
        found["after"] = train(backend, 2)
    return found


def break_one(group: LearnerGroup) -> dict[str, Any]:
    """A NaN in the part of a spread weight that the last rank has; what a step says."""
    backend = make_backend(group, "llama")
    if group.rank == group.world_size - 1:
        with torch.no_grad():
            backend.policy.shards["model.layers.1.mlp.up_proj.weight"][0, 0] = float("nan")
    try:
        train(backend, 1)
    except NonFiniteError as error:
        return {"raised": str(error), "steps_done": backend.steps_done}
    return {"raised": "", "steps_done": backend.steps_done}


def main(store: str, rank: str, world: str, folder: str, out: str) -> None:
    torch.set_num_threads(1)
    size = 1 if world == "1" else 2
    device = torch.device("cpu")
    group = open_group(int(rank), int(world), Path(store), device=device, timeout_s=200, tensor_size=size)
    result: dict[str, Any] = {}
    if not (Path(folder) / "of_one").exists():
        result = {family: train_family(group, family, Path(folder)) for family in FAMILIES}
        again = make_backend(group, "qwen3", ExecutionConfig(activation_checkpointing=True))
        result["checkpointed"] = {"metrics": train(again, STEPS), "digest": again.weight_digest()}
        result["broken"] = break_one(group)
    result["handed"] = hand_on(group, Path(folder))
    Path(out).write_text(json.dumps(result), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
