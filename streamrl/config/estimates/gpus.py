"""GPUs that the parts of a run ask Ray for. Pure: a configuration in, numbers and words out.

A learner rank asks for one, and a replica for what its engine computes on, unless a `gpu_share`, or
`rollout.resources`, says that it shares one with others. Ranks never share one with each other: NCCL, by which they
meet, refuses that. A part that asks for none is left all GPUs of its node by Ray, and would compute on the first of
them, whoever has that. Scoring asks for none: a reward model is computed on CPUs.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from streamrl.config.schema.run import Config
from streamrl.observability.plural import how_many

GPU = "GPU"
"""As Ray calls it."""

_ROUNDING = 1e-6
"""Three shares of a third are one."""


class GpuDemand(NamedTuple):
    """What the parts of one kind ask for on the run's own node. key: what has them ask. parts: how many there are.
    each: GPUs of one of them, or its share of one. why: the keys that make it so many, with their values."""

    key: str
    parts: int
    each: float
    why: str

    @property
    def requested(self) -> float:
        return self.parts * self.each


def gpus_of_a_rank(config: Config) -> float:
    return config.learner.gpu_share if config.learner.device == "cuda" else 0.0


def node_demand(config: Config) -> dict[str, float]:
    """What the learner's ranks take of each node that they are shared out to, by Ray's names."""
    gpus = config.learner.ranks_per_node * gpus_of_a_rank(config)
    return {GPU: gpus} if gpus else {}


def gpus_of_a_replica(config: Config) -> float:
    return (config.rollout.resources or {}).get(GPU, _gpus_of_an_engine(config))


def replica_demand(config: Config) -> dict[str, float] | None:
    """What a replica takes of its node, by Ray's names; None where all run on the run's own."""
    if config.rollout.resources is None:
        return None
    gpus = gpus_of_a_replica(config)
    return {**config.rollout.resources, **({GPU: gpus} if gpus else {})}


def gpus_on_run_node(config: Config) -> list[GpuDemand]:
    """What is asked for on the run's own node, by each kind of part that asks for any: not by replicas that are placed
    by what they take of their node."""
    learner, rollout = config.learner, config.rollout
    rank, engine = gpus_of_a_rank(config), 0.0 if rollout.resources is not None else _gpus_of_an_engine(config)
    why_rank, why_engine = f"learner.num_workers = {learner.num_workers}", f"rollout.replicas = {rollout.replicas}"
    if learner.nodes > 1:
        why_rank = f"{why_rank}, learner.nodes = {learner.nodes}"
    if rank < 1:
        why_rank = f"{why_rank}, learner.gpu_share = {rank:g}"
    if engine > 1:
        why_engine = f"{why_engine}, rollout.server.tensor_parallel = {engine:g}"
    elif engine < 1:
        why_engine = f"{why_engine}, rollout.gpu_share = {engine:g}"
    demands = [
        GpuDemand("learner.device", learner.ranks_per_node, rank, why_rank),
        GpuDemand("rollout.device", rollout.replicas, engine, why_engine),
    ]
    return [demand for demand in demands if demand.requested]


def too_few(demands: Sequence[GpuDemand], there: int) -> str:
    """Why so many GPUs are not enough for all of these, in words; "" where they are."""
    needed = gpus_for(demands)
    if needed <= there:
        return ""
    asked = ", ".join(f'{demand.key} = "cuda" asks for {demand.requested:g} ({demand.why})' for demand in demands)
    has = "is" if there == 1 else "are"
    what = f"the run asks for {how_many(needed, 'GPU', 'GPUs')}, and there {has} {there}: {asked}"
    return f'{what}; set "cpu", lower these numbers, or have parts share a GPU (learner.gpu_share, rollout.gpu_share)'


def gpus_for(demands: Sequence[GpuDemand]) -> int:
    """How many GPUs hold all of these: a part of less than one lies on one GPU, the largest placed first."""
    whole = sum(demand.parts * ceil(demand.each) for demand in demands if demand.each >= 1)
    shares = [demand.each for demand in demands if demand.each < 1 for _ in range(demand.parts)]
    left: list[float] = []
    for share in sorted(shares, reverse=True):
        place = next((index for index, room in enumerate(left) if room >= share - _ROUNDING), None)
        if place is None:
            left.append(1.0 - share)
        else:
            left[place] -= share
    return whole + len(left)


def largest_request(demands: Sequence[GpuDemand]) -> str:
    """The key that asks for the most."""
    return max(demands, key=lambda demand: demand.requested).key


def _gpus_of_an_engine(config: Config) -> float:
    rollout = config.rollout
    if rollout.device != "cuda" or rollout.engine == "scripted":
        return 0.0
    starts_server = rollout.is_server and rollout.server.endpoint is None
    # Beside a server that runs already, its model is evaluated in the replica.
    return rollout.gpu_share * (rollout.server.tensor_parallel if starts_server else 1)
