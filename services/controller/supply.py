"""What the nodes of the cluster have, and where Ray is to put a replica. A thin call: `streamrl.scheduling.placement`
decides."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray._private.state import available_resources_per_node
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from streamrl.config import Config
from streamrl.config.estimates.gpus import (
    GPU,
    gpus_of_a_replica,
    gpus_on_run_node,
    largest_request,
    node_demand,
    replica_demand,
    too_few,
)
from streamrl.errors import ResourceError
from streamrl.scheduling.placement import Supply, fullest, impossible, shared_out, standing, too_few_nodes

KNOWN_AFTER_S = 2.0
"""Seconds after which what is free tells of a replica that was made."""


def supply() -> list[Supply]:
    """Of each node that is up. Blocks for a call to Ray."""
    # What `ray status` shows, too: of each node alone there is no public call.
    free = available_resources_per_node()
    return [
        Supply(node["NodeID"], node["NodeManagerHostname"], node["Resources"], free.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"]
    ]


def require_possible(config: Config) -> None:
    """Raises ResourceError where no node could ever have a replica, or the run's own node never what is asked of it.
    Blocks as `supply` does."""
    why = cannot_be_placed(config, supply(), ray.get_runtime_context().get_node_id())
    if why:
        raise ResourceError(why)


def cannot_be_placed(config: Config, nodes: Sequence[Supply], home: str) -> str:
    """Why these nodes can never have all parts of a run, whoever else leaves, in words; "" where they can. home: Ray's
    id of the run's own node. Pure."""
    demand = replica_demand(config)
    if demand is not None and (why := impossible(demand, nodes)):
        return f"rollout.resources: {why}; ask for less, or start Ray on a node that has it"
    learner = config.learner
    if learner.nodes > 1 and (why := too_few_nodes(learner.nodes, node_demand(config), nodes, home)):
        return f"learner.nodes = {learner.nodes}: {why}"
    demands = gpus_on_run_node(config)
    there = sum(int(node.total.get(GPU, 0)) for node in nodes if node.node == home)
    why = too_few(demands, there)
    return f"this node: {largest_request(demands)}: {why}" if why else ""


def rank_nodes(config: Config, before: Sequence[str] = ()) -> list[str]:
    """Ray's ids of the nodes that ranks of the learner go to, the run's own first; none where all are on that. before:
    where ranks were. Raises ResourceError where too few have room. Blocks as `supply` does."""
    count = config.learner.nodes
    if count == 1:
        return []
    nodes, home = supply(), ray.get_runtime_context().get_node_id()
    chosen = shared_out(home, count, node_demand(config), nodes, before)
    if len(chosen) < count:
        have = standing(node_demand(config), nodes)
        raise ResourceError(
            f"learner.nodes = {count}: {len(chosen)} nodes have room for {config.learner.ranks_per_node} ranks; {have}"
        )
    return chosen


class Placer:
    """Ray's options for each replica of one run, by what it takes of its node."""

    def __init__(self, config: Config, supply: Callable[[], list[Supply]] = supply) -> None:
        self._supply = supply
        self._demand = replica_demand(config)
        self._gpus = gpus_of_a_replica(config)
        self._pack = config.rollout.placement == "pack"
        self._sent: deque[tuple[float, str]] = deque()
        """(when, node) of those that were made lately."""

    def options(self) -> dict[str, Any]:
        """For the next one; its GPUs alone where replicas run on the run's own node. Blocks as `supply` does, to
        pack."""
        if self._demand is None:
            return {"num_gpus": self._gpus}
        node = self._fullest(self._demand) if self._pack else None
        return {**placement(self._demand), **({} if node is None else _preferred(node))}

    def _fullest(self, demand: dict[str, float]) -> str | None:
        now = time.monotonic()
        while self._sent and self._sent[0][0] < now - KNOWN_AFTER_S:
            self._sent.popleft()
        node = fullest(demand, self._supply(), [sent for _, sent in self._sent])
        if node is not None:
            self._sent.append((now, node))
        return node


def placement(resources: dict[str, float]) -> dict[str, Any]:
    """Ray's options for a part that takes these of its node: on any node that has them free, on as many nodes as there
    are."""
    own = {name: amount for name, amount in resources.items() if name not in ("CPU", GPU)}
    return {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get(GPU, 0),
        "resources": own,
        "scheduling_strategy": "SPREAD",
    }


def _preferred(node: str) -> dict[str, Any]:
    # Elsewhere if somebody else was quicker: it would wait for this node alone.
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)}
