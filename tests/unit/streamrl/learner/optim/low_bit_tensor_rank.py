"""One rank of a learner whose layers are spread and whose moments are of 8 bits, for the tests.

    python low_bit_tensor_rank.py STORE RANK WORLD FOLDER OUT

Two ranks train, save into FOLDER, and go on; one rank trains too, then loads that and saves it again; two ranks that
find that load it and go on. Then one rank tries what two saved of a model that keeps other moments when it is spread.
OUT gets JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from support.learner.learner_rank import save
from support.learner.tensor_rank import reload, train
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import DataError
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup, open_group

WHOLE, HALVED = 256, 192
"""Rows of the MLP's second matrix: over two ranks 128 elements, which are two blocks, and 96, which are none."""


def make_backend(group: LearnerGroup, intermediate_size: int) -> FsdpBackend:
    torch.manual_seed(5)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=19,
            hidden_size=128,
            intermediate_size=intermediate_size,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=64,
            tie_word_embeddings=True,
        )
    )
    return on_policy(
        ShardedPolicy(model, group, torch.float32),
        # An eps under which a gradient of mere rounding does not decide a step.
        optimizer=OptimizerConfig(kind="adamw_8bit", lr=3e-3, warmup_steps=3, max_grad_norm=0.5, eps=1e-4),
        algorithm=AlgorithmConfig(),
        total_steps=40,
        temperature=0.9,
    )


def train_and_save(group: LearnerGroup, folder: Path) -> dict[str, Any]:
    backend = make_backend(group, WHOLE)
    found: dict[str, Any] = {"metrics": train(backend, 6)}
    if group.world_size == 1:
        found["loaded"] = reload(backend, folder / "two")
        save(backend, folder / "one")
        found["refused"] = refused(make_backend(group, HALVED), folder / "halved")
        return found
    found["saved"] = weight_digest(backend.state_tensors())
    save(backend, folder / "two")
    found["after"] = train(backend, 2) and weight_digest(backend.state_tensors())
    halved = make_backend(group, HALVED)
    train(halved, 1)
    save(halved, folder / "halved")
    return found


def refused(backend: FsdpBackend, root: Path) -> str:
    try:
        reload(backend, root)
    except DataError as error:
        return str(error)
    return ""


def load_and_go_on(group: LearnerGroup, folder: Path) -> dict[str, Any]:
    backend = make_backend(group, WHOLE)
    loaded = reload(backend, folder / "one")
    return {"loaded": loaded, "after": train(backend, 2) and weight_digest(backend.state_tensors())}


def main(store: str, rank: str, world: str, folder: str, out: str) -> None:
    torch.set_num_threads(1)
    device, size = torch.device("cpu"), int(world)
    group = open_group(int(rank), size, Path(store), device=device, timeout_s=60, tensor_size=size)
    run = load_and_go_on if (Path(folder) / "one").exists() else train_and_save
    Path(out).write_text(json.dumps(run(group, Path(folder))), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
