"""One rank of a learner that trains adapters, in one layout after the other, and under FSDP2.

    python adapter_rank.py STORE RANK WORLD OUT

OUT gets, for each layout, how far it is from FSDP2, and what went on in another layout or backend, as JSON.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from support.megatron.cpu_shim import cuda_is_cpu
from support.megatron.models import small_model, small_rows
from support.megatron.parity_rank import own_packs
from support.megatron.state_rank import State, far_apart, ranks_of, saved

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import MegatronConfig, OptimizerConfig
from streamrl.errors import StreamRLError
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.fsdp import on_policy
from streamrl.learner.model.adapters import AdapterPolicy, AdapterSettings
from streamrl.learner.parallel.process_group import open_group
from streamrl.weights.tensors import weights_digest

WORLD, STEPS = 2, 5
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
SOME = ("q_proj", "v_proj", "up_proj")
"""Each fused layer has a projection without an adapter, and the layers that are cut by their inputs have none."""
SETTINGS: dict[str, Any] = {
    "optimizer": OptimizerConfig(lr=3e-3, warmup_steps=1, weight_decay=0.01, max_grad_norm=0.5, eps=1e-6),
    "algorithm": AlgorithmConfig(entropy_coef=0.01),
    "total_steps": 20,
    "temperature": 0.9,
}


@dataclass(frozen=True)
class Case:
    """world: 1 where each rank has a group of its own."""

    family: str
    layout: MegatronConfig
    targets: tuple[str, ...] = ALL
    sizes: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    world: int = WORLD


def _layout(**layout: Any) -> MegatronConfig:
    return MegatronConfig(**{"distributed_optimizer": False, **layout})


TENSOR = _layout(tensor_parallel=2)
PIPELINE = _layout(pipeline_parallel=2, distributed_optimizer=True)
ALONE = _layout()
SPREAD = {"tensor_parallel": 2, "sequence_parallel": True}
TIED = {"tie_word_embeddings": True}
CASES: dict[str, Case] = {
    "tensor": Case("qwen3", TENSOR),
    "tensor_tied_biases": Case("qwen2", TENSOR, sizes=TIED),
    "tensor_some": Case("llama", _layout(tensor_parallel=2, distributed_optimizer=True), SOME),
    "sequence": Case("qwen3", _layout(**SPREAD)),
    "sequence_recompute": Case("llama", _layout(**SPREAD, recompute="layers"), SOME),
    "pipeline": Case("qwen3", PIPELINE),
    "pipeline_tied": Case("qwen2", _layout(pipeline_parallel=2), sizes=TIED),
    "interleaved": Case("llama", _layout(pipeline_parallel=2, virtual_pipeline=2), SOME),
    "context": Case("qwen3", _layout(context_parallel=2)),
    "data": Case("qwen3", _layout(recompute="layers")),
    "data_distributed_optimizer": Case("qwen2", _layout(distributed_optimizer=True, recompute="attention"), sizes=TIED),
    "experts": Case("qwen3_moe", _layout(expert_parallel=2, distributed_optimizer=True), ATTENTION),
    "experts_sequence": Case("mixtral", _layout(**SPREAD, expert_tensor_parallel=2), ("v_proj", "o_proj")),
    "bfloat16_tensor": Case("qwen3", TENSOR, dtype=torch.bfloat16),
    "bfloat16_pipeline": Case("qwen3", PIPELINE, dtype=torch.bfloat16),
    "bfloat16_data": Case("qwen3", _layout(distributed_optimizer=True), dtype=torch.bfloat16),
}
"""The usual layouts, each with something of its own."""


class Trained(NamedTuple):
    """begun: what a version held before the first step. merged, base: digests of the weights then, and of what is not
    trained."""

    begun: dict[str, torch.Tensor]
    merged: str
    base: str
    metrics: list[dict[str, float]]
    end: State
    published: dict[str, torch.Tensor]


class Ranks:
    """Opens groups of the same ranks one after the other, each at a file of its own."""

    def __init__(self, store: str, rank: int) -> None:
        self.rank = rank
        self._store, self._opened = store, 0

    def _path(self) -> Path:
        self._opened += 1
        return Path(f"{self._store}.{self._opened}")

    @contextmanager
    def megatron(self, case: Case) -> Iterator[Any]:
        from streamrl.config.estimates.megatron import MegatronLayout
        from streamrl.learner.megatron.backend import build
        from streamrl.learner.megatron.ranks import open_ranks

        layout, cpu = MegatronLayout.of(case.layout, case.world), torch.device("cpu")
        rank, path = (self.rank, self._path()) if case.world == WORLD else (0, Path(f"{self._path()}.{self.rank}"))
        ranks = open_ranks(rank, path, layout, device=cpu, timeout_s=60)
        model, adapters = small_model(case.family, **case.sizes), settings_of(case)
        try:
            yield build(model, megatron=case.layout, ranks=ranks, dtype=case.dtype, adapters=adapters, **SETTINGS)
        finally:
            ranks.close()

    @contextmanager
    def fsdp(self, case: Case) -> Iterator[Any]:
        group = open_group(self.rank, WORLD, self._path(), device=torch.device("cpu"), timeout_s=60)
        model = small_model(case.family, **case.sizes)
        yield on_policy(AdapterPolicy(model, group, case.dtype, settings_of(case)), **SETTINGS)
        group.close()


def settings_of(case: Case) -> AdapterSettings:
    return AdapterSettings(rank=3, alpha=6.0, targets=case.targets, seed=7)


def train(backend: Any, steps: int) -> list[dict[str, float]]:
    found = []
    for _ in range(steps):
        rows = small_rows(backend.steps_done)
        metrics = backend.step(own_packs(rows, *ranks_of(backend))[1], count_targets(rows))
        found.append({name: value for name, value in metrics.items() if not name.startswith("time/")})
    return found


def trained(backend: Any) -> Trained:
    begun = {name: whole.clone() for name, whole in backend.policy.iter_version()}
    merged, base = backend.weight_digest(), weights_digest(backend.policy.gather_base())
    metrics = train(backend, STEPS)
    published = {name: whole.clone() for name, whole in backend.policy.gather(backend.policy.snapshot())}
    assert weights_digest(backend.policy.gather_base()) == base, "the base has changed"
    return Trained(begun, merged, base, metrics, saved(backend), published)


def untouched(backend: Any) -> bool:
    """Whether the model's weights have neither a gradient nor a place for one."""
    params = backend.policy._base.params.values()
    return not any(param.requires_grad or param.grad is not None or hasattr(param, "main_grad") for param in params)


def compare(ours: Trained, theirs: Trained) -> dict[str, Any]:
    pairs = list(zip(ours.metrics, theirs.metrics, strict=True))
    return {
        "names": list(ours.begun) == list(theirs.begun) and list(ours.end[0]) == list(theirs.end[0]),
        "begun": all(torch.equal(ours.begun[name], whole) for name, whole in theirs.begun.items()),
        "digests": (ours.merged, ours.base) == (theirs.merged, theirs.base),
        "facts": ours.end[1]["adapters"] == theirs.end[1]["adapters"],
        "published": all(torch.equal(ours.published[n], ours.end[0][f"model/{n}"]) for n in theirs.published),
        "losses": max(abs(mine["loss/policy"] - other["loss/policy"]) for mine, other in pairs),
        "metrics": max(
            abs(mine[name] - other[name]) / max(abs(other[name]), 1.0) for mine, other in pairs for name in mine
        ),
        "apart": far_apart(ours.end, theirs.end),
        "moved": max(
            (theirs.end[0][f"model/{name}"] - whole).abs().max().item() for name, whole in theirs.begun.items()
        ),
    }


def against_fsdp(ranks: Ranks) -> dict[str, Any]:
    """Each layout, against FSDP2 with the same model, adapters and rows."""

    @cache
    def plain(family: str, targets: tuple[str, ...], tied: bool, dtype: torch.dtype) -> Trained:
        with ranks.fsdp(Case(family, ALONE, targets, {"tie_word_embeddings": tied}, dtype)) as backend:
            return trained(backend)

    found = {}
    for name, case in CASES.items():
        theirs = plain(case.family, case.targets, case.sizes.get("tie_word_embeddings", False), case.dtype)
        with ranks.megatron(case) as backend:
            found[name] = {**compare(trained(backend), theirs), "untouched": untouched(backend)}
    return found


def equal(one: State, other: State) -> bool:
    return one[0].keys() == other[0].keys() and all(
        torch.equal(one[0][name], whole) for name, whole in other[0].items()
    )


def goes_on(opened: AbstractContextManager[Any], state: State, steps: int) -> tuple[bool, State]:
    """Whether what is loaded is what was saved, and the state some steps on."""
    with opened as backend:
        backend.load_state(state[0].__getitem__, state[1])
        loaded = equal(saved(backend), state)
        train(backend, steps)
        return loaded, saved(backend)


def resumes(ranks: Ranks) -> dict[str, Any]:
    """Three steps on two tensor ranks; then two more there, by another process, by two stages, in FSDP2, by one rank,
    and in FSDP2 with what the stages left."""
    tensor, pipeline = Case("qwen3", TENSOR), Case("qwen3", PIPELINE)
    with ranks.megatron(tensor) as backend:
        train(backend, 3)
        state = saved(backend)
        train(backend, 2)
        end = saved(backend)
    same = goes_on(ranks.megatron(tensor), state, 2)
    staged = goes_on(ranks.megatron(pipeline), state, 2)
    sharded = goes_on(ranks.fsdp(tensor), state, 2)
    back = goes_on(ranks.megatron(pipeline), sharded[1], 0)
    alone = goes_on(ranks.megatron(Case("qwen3", ALONE, world=1)), staged[1], 0)
    return {
        "same_layout": equal(same[1], end),
        "loaded": [same[0], staged[0], sharded[0], back[0], alone[0]],
        "apart": [far_apart(end, other[1]) for other in (staged, sharded)],
    }


def refused(ranks: Ranks) -> list[str]:
    """What is said of layers that have no adapters, and of states that are of something else."""
    said = []

    def told(opened: AbstractContextManager[Any], extra: dict[str, Any] | None = None) -> None:
        try:
            with opened as backend:
                backend.load_state(lambda name: torch.zeros(()), {"steps_done": 1, "torch_rng": "", **(extra or {})})
        except StreamRLError as error:
            said.append(str(error))

    told(ranks.megatron(Case("qwen3_moe", _layout(expert_parallel=2), ("q_proj", "down_proj"))))
    told(ranks.megatron(Case("qwen3", TENSOR)))
    told(ranks.megatron(Case("qwen3", TENSOR)), {"adapters": {"rank": 3, "alpha": 6.0, "base": "another"}})
    return said


def main(store: str, rank: str, world: str, out: str) -> None:
    assert int(world) == WORLD
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ranks = Ranks(store, int(rank))
    with cuda_is_cpu():
        found = {"against_fsdp": against_fsdp(ranks), "resumes": resumes(ranks), "refused": refused(ranks)}
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
