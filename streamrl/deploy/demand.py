"""What the nodes of a run must have: processors, memory, shared memory, disk, GPUs. Pure; rounded up, with a margin."""

from math import ceil

from msgspec import Struct

from streamrl.config.estimates.gpus import GPU, gpus_for, gpus_of_a_replica, gpus_on_run_node
from streamrl.config.estimates.resources import Estimate
from streamrl.config.schema.run import Config

GIB = 2**30
_MIB = 2**20
_SPARE = 1.25  # an estimate is no measurement
_OWN_CPUS = 1  # for the owner, the queue, the rewards' stage and Ray itself
_NODE_OVERHEAD = 2 * GIB  # of a node with a replica: Ray, torch, and the actor that serves its rows
_LEAST_SHARED = 64 * _MIB


class NodeDemand(Struct, frozen=True, kw_only=True):
    """Of one node, sizes in bytes. resources: by Ray's names, beside CPU and GPU."""

    cpus: int
    memory: int
    shared_memory: int
    gpus: int = 0
    resources: dict[str, float] = {}


class Demand(Struct, frozen=True, kw_only=True):
    """Of the whole run. rollout: of each node with a replica, None where replicas are on the run's node. disk: of the
    run folder, in bytes."""

    run: NodeDemand
    disk: int
    rollout: NodeDemand | None = None
    rollout_nodes: int = 0

    @property
    def uses_gpus(self) -> bool:
        return self.run.gpus > 0 or (self.rollout is not None and self.rollout.gpus > 0)


def demand(config: Config, needed: Estimate) -> Demand:
    """needed: the estimate of `config`."""
    apart = config.rollout.resources is not None
    replicas = {name: size for name, size in needed.memory.items() if name.startswith("rollout.")}
    own = {name: size for name, size in needed.memory.items() if not (apart and name in replicas)}
    shared = max(_LEAST_SHARED, _up(_SPARE * needed.shared_memory, _MIB))
    run = NodeDemand(
        cpus=_run_cpus(config, apart),
        memory=_up(_SPARE * sum(own.values()) + shared, GIB),
        shared_memory=shared,
        gpus=gpus_for(gpus_on_run_node(config)),
    )
    disk = _up(_SPARE * needed.disk, GIB)
    if not apart:
        return Demand(run=run, disk=disk)
    nodes = config.rollout.most_replicas
    each = sum(replicas.values()) / config.rollout.replicas
    return Demand(run=run, disk=disk, rollout=_rollout_node(config, each, shared), rollout_nodes=nodes)


def _rollout_node(config: Config, memory: float, shared: int) -> NodeDemand:
    """A node for one replica."""
    asked = config.rollout.resources or {}
    return NodeDemand(
        cpus=max(config.rollout.threads, ceil(asked.get("CPU", 1))) + _OWN_CPUS,
        memory=_up(_SPARE * memory + shared, GIB) + _NODE_OVERHEAD,
        shared_memory=shared,
        gpus=ceil(gpus_of_a_replica(config)),
        resources={name: _plain(amount) for name, amount in asked.items() if name not in ("CPU", GPU)},
    )


def _run_cpus(config: Config, apart: bool) -> int:
    replicas = 0 if apart else config.rollout.most_replicas * config.rollout.threads
    ranks = config.learner.num_workers * config.learner.threads
    return replicas + ranks + config.reward.workers + _OWN_CPUS


def _plain(amount: float) -> float:
    """1 and not 1.0, where it is whole."""
    return int(amount) if amount == int(amount) else amount


def _up(size: float, unit: int) -> int:
    return ceil(size / unit) * unit
