"""One rank of every layout of so many ranks, one after the other, against one process with the whole model.

    python parity_rank.py STORE RANK WORLD OUT

OUT gets, for each layout, the greatest differences as JSON.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.megatron.cpu_shim import cuda_is_cpu
from support.megatron.layouts import Case, cases_of
from support.megatron.models import small_model, small_rows, with_routes
from support.megatron.new_family import PHI3
from support.megatron.plain_learner import PlainLearner

from streamrl.algorithms.advantages.outcome import ADVANTAGES
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.batch.balance import split_rows
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets, select_rows
from streamrl.learner.megatron.families import FAMILIES
from streamrl.types import RolloutRows

STEPS, TOTAL_STEPS, BUDGET = 3, 10, 60
SETTINGS: dict[str, Any] = {
    "optimizer": OptimizerConfig(lr=1e-3, warmup_steps=1, weight_decay=0.01, max_grad_norm=0.3, eps=1e-6),
    "algorithm": AlgorithmConfig(entropy_coef=0.01),
    "total_steps": TOTAL_STEPS,
    "temperature": 0.9,
}


ROUTED = {"router_replay": True, "router_aux_loss_coef": 0.05}


def rows_of(case: Case, step: int) -> RolloutRows:
    return with_routes(small_rows(step), step) if case.routed else small_rows(step)


def advantages_of(rows: RolloutRows) -> np.ndarray:
    return ADVANTAGES["grpo"](rows.rewards, rows.valid, rows.group)


def own_packs(rows: RolloutRows, data_rank: int, data_size: int) -> tuple[RolloutRows, list[PackedBatch]]:
    """The rows of a data rank, and their packs: of another number on each."""
    mine = split_rows(rows.lengths(), rows.group, data_size, 24)[data_rank]
    part = select_rows(rows, mine)
    return part, pack(part, advantages_of(rows)[mine], BUDGET)


def greatest_difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Over all tensors, relative to the largest element of each."""
    assert list(ours) == list(theirs)
    return max(((ours[n] - t).abs().max() / t.abs().max().clamp(min=1e-3)).item() for n, t in theirs.items())


def compare(case: Case, store: Path, rank: int) -> dict[str, Any]:
    from streamrl.config.estimates.megatron import MegatronLayout
    from streamrl.learner.megatron.backend import build
    from streamrl.learner.megatron.ranks import open_ranks

    layout = MegatronLayout.of(case.megatron, case.world)
    ranks = open_ranks(rank, store, layout, device=torch.device("cpu"), timeout_s=60)
    settings = {**SETTINGS, **(ROUTED if case.routed else {})}
    plain = PlainLearner(small_model(case.family, **case.sizes), **settings)
    source = {name: param.detach().clone() for name, param in plain.model.named_parameters()}
    families = {**FAMILIES, "phi3": PHI3}
    backend = build(plain.model, megatron=case.megatron, ranks=ranks, families=families, **settings)
    out = dict(backend.iter_hf_weights())
    found: dict[str, Any] = {
        "names": list(out) == list(source),
        "equal": all(torch.equal(out[name], whole) for name, whole in source.items()),
        "metrics": 0.0,
    }
    rows, packs = own_packs(rows_of(case, 0), ranks.data_rank, ranks.data_size)
    with torch.no_grad():
        pairs = [(ours, plain.logprobs(rows, one)[0]) for one, ours in zip(packs, backend.logprobs(packs), strict=True)]
    found["packs"] = len(packs)
    found["logprobs"] = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
    for step in range(STEPS):
        rows = rows_of(case, step)
        _, packs = own_packs(rows, ranks.data_rank, ranks.data_size)
        ours, theirs = backend.step(packs, count_targets(rows)), plain.step(rows, advantages_of(rows))
        found["told"] = sorted(theirs)
        apart = (abs(ours[name] - theirs[name]) / max(abs(theirs[name]), 1.0) for name in theirs)
        found["metrics"] = max(found["metrics"], *apart)
        if step == 0:  # the first moment is a share of the gradient
            found["gradients"] = greatest_difference(state(backend, "exp_avg"), plain_state(plain, "exp_avg"))
    weights = state(backend, "model")
    found["weights"] = max((weights[n] - whole).abs().max().item() for n, whole in plain.model.named_parameters())
    found["moments"] = greatest_difference(state(backend, "exp_avg_sq"), plain_state(plain, "exp_avg_sq"))
    ranks.close()
    return found


def state(backend: Any, kind: str) -> dict[str, torch.Tensor]:
    tensors = dict(backend.state_tensors())
    return {name.removeprefix(f"{kind}/"): whole for name, whole in tensors.items() if name.startswith(f"{kind}/")}


def plain_state(plain: PlainLearner, kind: str) -> dict[str, torch.Tensor]:
    return {name: plain.optimizer.state[param][kind] for name, param in plain.model.named_parameters()}


def main(store: str, rank: str, world: str, out: str) -> None:
    torch.set_num_threads(1)
    # megatron-core says at import what else could be installed.
    warnings.simplefilter("ignore")
    found = {}
    with cuda_is_cpu():
        for name, case in cases_of(int(world)).items():
            found[name] = compare(case, Path(f"{store}.{name}"), int(rank))
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
