"""One rank of a learner of many families of models, for the tests.

    python family_rank.py STORE RANK WORLD OUT

Trains three steps of each on two shares, experts balanced where routers are known.
OUT gets metrics, digest and names of its weights by family, as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from support.engines.family_models import family_model
from support.learner.learner_rank import train_on_two_shares

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.fsdp import on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup, open_group

FAMILIES = ("gemma3_text", "gpt_oss", "qwen3_moe", "deepseek_v3", "qwen3_5_text", "lfm2", "mamba2", "falcon_h1")
STEPS = 3


def trained(family: str, group: LearnerGroup) -> dict[str, Any]:
    backend = on_policy(
        ShardedPolicy(family_model(family), group, torch.float32),
        optimizer=OptimizerConfig(lr=3e-3, warmup_steps=3),
        algorithm=AlgorithmConfig(),
        total_steps=STEPS,
        temperature=0.9,
        router_aux_loss_coef=0.1,
    )
    metrics = train_on_two_shares(backend, STEPS)
    names = [name for name, _ in backend.iter_hf_weights()]
    return {"metrics": metrics, "digest": backend.weight_digest(), "names": names}


def main(store: str, rank: str, world: str, out: str) -> None:
    torch.set_num_threads(1)
    group = open_group(int(rank), int(world), Path(store), device=torch.device("cpu"), timeout_s=200)
    Path(out).write_text(json.dumps({family: trained(family, group) for family in FAMILIES}), encoding="utf-8")
    group.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
