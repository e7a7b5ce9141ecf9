"""One rank of a policy with a model beside it, a critic or PRIME's, under one backend after the other.

    python auxiliary_rank.py STORE RANK WORLD OUT

OUT gets, for each model and layout, how far it is from FSDP2 in scores, metrics, gradients and weights, as JSON.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from support.megatron.cpu_shim import cuda_is_cpu
from support.megatron.models import small_model, small_rows
from support.megatron.parity_rank import advantages_of, greatest_difference
from support.megatron.reference_rank import other_model
from support.megatron.state_rank import DATA, PIPELINE, TENSOR, WORLD, State

from streamrl.config.estimates.megatron import MegatronLayout
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import CriticConfig, MegatronConfig, OptimizerConfig, PrimeConfig
from streamrl.errors import NonFiniteError
from streamrl.learner.auxiliary.auxiliary import AuxiliaryModel, AuxiliaryObjective, AuxiliaryParts, step_of_both
from streamrl.learner.auxiliary.critic import Critic, critic_objective
from streamrl.learner.auxiliary.kl_penalty import TokenDivergences, referred
from streamrl.learner.auxiliary.on_fsdp import parts_on_fsdp
from streamrl.learner.auxiliary.prime import ImplicitRewardModel, prime_objective
from streamrl.learner.batch.balance import split_rows
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets, select_rows
from streamrl.learner.batch.scored_batch import Part
from streamrl.learner.fsdp import on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.model.value_model import HEAD, ShardedCritic, decoder_of
from streamrl.learner.parallel.process_group import open_group
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.types import RolloutRows

STEPS, TOTAL, BUDGET = 3, 10, 60
CPU, FLOAT = torch.device("cpu"), torch.float32
RATE = OptimizerConfig(lr=1e-3, warmup_steps=0, weight_decay=0.01, max_grad_norm=0.5, eps=1e-6)
CRITIC = CriticConfig(warmup_steps=1, value_clip=0.05, policy_lambda=0.9, gamma=0.98, optimizer=RATE)
PRIME = PrimeConfig(optimizer=RATE)
LAYOUTS = {
    "tensor": TENSOR,
    "sequence": MegatronConfig(tensor_parallel=2, sequence_parallel=True, distributed_optimizer=False),
    "pipeline": PIPELINE,
    "interleaved": MegatronConfig(pipeline_parallel=2, virtual_pipeline=2),
    "data": DATA,
    "context": MegatronConfig(context_parallel=2),
}
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "critic": ("qwen3", tuple(LAYOUTS)),
    "prime": ("qwen2", ("tensor", "pipeline", "data")),
}
"""The family of each model, and its layouts."""
ON: dict[str, tuple[MegatronConfig | None, ...]] = {"critic": (None, TENSOR, PIPELINE), "prime": (None, DATA)}
"""Where a state of FSDP2 goes on."""


class Side(NamedTuple):
    """What either backend has for one rank. ask: log-probs of packs under the reference, at a temperature."""

    policy: Any
    parts: AuxiliaryParts
    ask: Any
    data: tuple[int, int]


class Opened:
    """Opens ranks one after the other, each group at a file of its own."""

    def __init__(self, store: str, rank: int) -> None:
        self._store, self._rank, self._opened = store, rank, 0

    def _path(self) -> Path:
        self._opened += 1
        return Path(f"{self._store}.{self._opened}")

    def side(self, kind: str, layout: MegatronConfig | None) -> Any:
        objective = critic_objective(CRITIC) if kind == "critic" else prime_objective(PRIME)
        family = KINDS[kind][0]
        return self._fsdp(family, objective) if layout is None else self._megatron(family, objective, layout)

    @contextmanager
    def _fsdp(self, family: str, objective: AuxiliaryObjective) -> Iterator[Side]:
        group = open_group(self._rank, WORLD, self._path(), device=CPU, timeout_s=60)
        policy = on_policy(ShardedPolicy(small_model(family), group, FLOAT), **settings_of(objective))
        values, model = objective.of_values, small_model(family)
        sharded = ShardedCritic(decoder_of(model), group, FLOAT) if values else ShardedPolicy(model, group, FLOAT)
        held = FrozenPolicy(partial(other_model, family), group, FLOAT)
        ask = partial(referred, held, group=group)
        yield Side(policy, parts_on_fsdp(sharded, objective, RATE, TOTAL), ask, (group.data_rank, group.data_size))
        group.close()

    @contextmanager
    def _megatron(self, family: str, objective: AuxiliaryObjective, layout: MegatronConfig) -> Iterator[Side]:
        from streamrl.learner.megatron.auxiliary import parts_on_megatron
        from streamrl.learner.megatron.backend import build
        from streamrl.learner.megatron.ranks import open_ranks
        from streamrl.learner.megatron.references import MegatronReference

        ranks = open_ranks(self._rank, self._path(), MegatronLayout.of(layout, WORLD), device=CPU, timeout_s=60)
        policy = build(small_model(family), megatron=layout, ranks=ranks, **settings_of(objective))
        on = {"megatron": layout, "ranks": ranks, "dtype": FLOAT}
        parts = parts_on_megatron(small_model(family), objective, RATE, TOTAL, **on)
        held = MegatronReference(partial(other_model, family), ranks, layout, FLOAT)
        yield Side(policy, parts, held.logprobs, (ranks.data_rank, ranks.data_size))
        ranks.close()


def settings_of(objective: AuxiliaryObjective) -> dict[str, Any]:
    algorithm = AlgorithmConfig(advantage="gae" if objective.of_values else "prime")
    idle = CRITIC.warmup_steps if objective.of_values else 0
    return {"optimizer": RATE, "algorithm": algorithm, "total_steps": TOTAL, "temperature": 0.9, "idle_steps": idle}


def model_of(kind: str, side: Side) -> AuxiliaryModel:
    if kind == "prime":
        return ImplicitRewardModel(side.parts, partial(side.ask, temperature=1.0), PRIME)
    paid = TokenDivergences(partial(side.ask, temperature=0.9), "k3", 0.2, side.parts.group)
    return Critic(side.parts, CRITIC, paid)


def cut_of(rows: RolloutRows, side: Side) -> tuple[list[MiniBatch], list[list[Part]]]:
    """This rank's rows, as one mini-batch of one share."""
    data_rank, data_size = side.data
    places = split_rows(rows.lengths(), rows.group, data_size, 24)[data_rank]
    part = select_rows(rows, places)
    packs = pack(part, advantages_of(rows)[places], BUDGET)
    return [MiniBatch([packs], count_targets(rows))], [[Part(part, places)]]


def scores_of(side: Side) -> dict[str, torch.Tensor]:
    """Of packs that are the same on all ranks."""
    packs: list[PackedBatch] = pack(small_rows(7, groups=2), advantages_of(small_rows(7, groups=2)), BUDGET)
    return {str(number): found for number, found in enumerate(side.parts.scores(packs))}


class Found(NamedTuple):
    metrics: list[dict[str, float]]
    scores: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor]
    state: State


def trained(kind: str, side: Side, auxiliary: AuxiliaryModel) -> Found:
    metrics: list[dict[str, float]] = []
    gradients: dict[str, torch.Tensor] = {}
    for step in range(STEPS):
        metrics.append(step_of_both(side.policy, auxiliary, *cut_of(small_rows(step), side), epochs=2))
        # A moment that begins at zero: of the gradients of the two updates so far.
        gradients = gradients or of_kind(saved(auxiliary), f"{kind}/exp_avg/")
    return Found(metrics, scores_of(side), gradients, saved(auxiliary))


def saved(auxiliary: AuxiliaryModel) -> State:
    return {name: tensor.clone() for name, tensor in auxiliary.state_tensors()}, auxiliary.state_extra()


def of_kind(state: State, prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): whole for name, whole in state[0].items() if name.startswith(prefix)}


def apart(kind: str, ours: Found, theirs: Found) -> dict[str, Any]:
    pairs = zip(ours.metrics, theirs.metrics, strict=True)
    weights = {name: theirs.state[0][name] - whole for name, whole in ours.state[0].items() if "/model/" in name}
    return {
        "names": list(ours.state[0]) == list(theirs.state[0]) and all(o.keys() == t.keys() for o, t in pairs),
        "metrics": max(metrics_apart(o, t) for o, t in zip(ours.metrics, theirs.metrics, strict=True)),
        "scores": greatest_difference(ours.scores, theirs.scores),
        "gradients": greatest_difference(ours.gradients, theirs.gradients),
        "weights": max(one.abs().max().item() for one in weights.values()),
        "head": of_kind(ours.state, f"{kind}/model/")[HEAD].abs().max().item() if kind == "critic" else None,
    }


ONE_AT_THE_BOUND = 0.003
"""Of the share of values that are clipped: one of some 400, which rounding has on either side."""


def metrics_apart(ours: dict[str, float], theirs: dict[str, float]) -> float:
    clipped = "critic/clip_fraction"
    assert abs(ours.get(clipped, 0.0) - theirs.get(clipped, 0.0)) <= ONE_AT_THE_BOUND
    names = [name for name in theirs if not name.startswith("time/") and name != clipped]
    return max(abs(ours[name] - theirs[name]) / max(abs(theirs[name]), 1.0) for name in names)


def goes_on(opened: Opened, kind: str, state: State, layout: MegatronConfig | None) -> dict[str, Any]:
    """What another layout or backend makes of a state: the same, and a further step."""
    with opened.side(kind, layout) as side:
        auxiliary = model_of(kind, side)
        auxiliary.load_state(state[0].__getitem__, state[1])
        loaded = saved(auxiliary)
        for _ in range(1 + CRITIC.warmup_steps if kind == "critic" else 1):
            metrics = step_of_both(side.policy, auxiliary, *cut_of(small_rows(5), side), epochs=1)
        return {
            "equal": all(torch.equal(loaded[0][name], whole) for name, whole in state[0].items()),
            "bytes": auxiliary.state_bytes == sum(whole.nbytes for whole in state[0].values()),
            "metrics": {name: value for name, value in metrics.items() if not name.startswith("time/")},
        }


def broken(opened: Opened, layout: MegatronConfig, rank: int) -> str:
    """What each rank says of a NaN in the part of the critic that the last one has."""
    with opened.side("critic", layout) as side:
        auxiliary = model_of("critic", side)
        params = side.parts.backend._weights.params
        if rank == WORLD - 1:
            with torch.no_grad():
                next(whole for name, whole in params.items() if name.endswith("linear_fc2.weight"))[0, 0] = float("nan")
        try:
            step_of_both(side.policy, auxiliary, *cut_of(small_rows(0), side), epochs=1)
        except NonFiniteError as error:
            return str(error)
        return ""


def main(store: str, rank: str, world: str, out: str) -> None:
    assert int(world) == WORLD
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    opened, found = Opened(store, int(rank)), {}
    with cuda_is_cpu():
        for kind, (_, layouts) in KINDS.items():
            with opened.side(kind, None) as side:
                theirs = trained(kind, side, model_of(kind, side))
            for name in layouts:
                with opened.side(kind, LAYOUTS[name]) as side:
                    found[f"{kind}_{name}"] = apart(kind, trained(kind, side, model_of(kind, side)), theirs)
            found[f"{kind}_on"] = [goes_on(opened, kind, theirs.state, one) for one in ON[kind]]
        found["broken"] = {name: broken(opened, LAYOUTS[name], int(rank)) for name in ("tensor", "pipeline")}
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
