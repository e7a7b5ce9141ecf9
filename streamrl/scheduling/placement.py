"""Which node a replica goes to, and why it waits: what it takes of a node against what each node has. Pure.

Names and amounts are Ray's (`CPU`, `GPU`, and whatever a node was started with). It knows nothing of who runs where.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

SHOWN = 8
"""Nodes that a message lists."""
_RAYS_OWN = ("memory", "object_store_memory", "node:", "accelerator_type:")
_ROUNDING = 1e-6
"""Three times 0.1 are 0.3."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What one node has in all, and what of it nobody takes now. node: Ray's id of it. name: as its machine is
    called."""

    node: str
    name: str
    total: Mapping[str, float]
    free: Mapping[str, float]

    def __str__(self) -> str:
        names = [name for name in sorted(self.total) if not name.startswith(_RAYS_OWN)]
        amounts = ", ".join(f"{name} {self.free.get(name, 0.0):g} of {self.total[name]:g}" for name in names)
        return f"{self.name} ({self.node[:8]}): {amounts or 'nothing'}"


def fits(demand: Mapping[str, float], supply: Mapping[str, float]) -> int | float:
    """How many times this can be taken of that; infinite for a demand of nothing."""
    return min((int(supply.get(name, 0.0) / amount + _ROUNDING) for name, amount in demand.items()), default=math.inf)


def impossible(demand: Mapping[str, float], nodes: Sequence[Supply]) -> str:
    """Why no node can ever meet a demand, whoever else leaves, in words; "" where one can."""
    if any(fits(demand, node.total) for node in nodes):
        return ""
    return f"a replica takes {as_toml(demand)} of its node, and no node has as much; {_listed(nodes)}"


def shared_out(
    home: str, count: int, demand: Mapping[str, float], nodes: Sequence[Supply], before: Sequence[str] = ()
) -> list[str]:
    """`count` nodes that have a demand each, the run's own first, then those of `before` that are up, then those with
    most room; fewer where there are not as many."""
    up = {one.node for one in nodes}
    stays = [node for node in before if node != home and node in up]
    rooms = sorted((-fits(demand, one.free), one.name, one.node) for one in nodes if one.node not in (home, *stays))
    return [home, *stays, *(node for room, _, node in rooms if room <= -1)][:count]


def too_few_nodes(count: int, demand: Mapping[str, float], nodes: Sequence[Supply], home: str) -> str:
    """Why `count` nodes, the run's own among them, can never have a demand each, in words; "" where they can."""
    able = [one for one in nodes if one.node == home or fits(demand, one.total) >= 1]
    if len(able) >= count:
        return ""
    return f"ranks take {as_toml(demand)} of each node, and {len(able)} have as much; {_listed(nodes)}"


def standing(demand: Mapping[str, float], nodes: Sequence[Supply]) -> str:
    """The demand against the supply of each node, in words."""
    return f"it takes {as_toml(demand)} of its node; {_listed(nodes)}"


def fullest(demand: Mapping[str, float], nodes: Iterable[Supply], taken: Sequence[str] = ()) -> str | None:
    """The node with room for the demand, and for the fewest more of its kind beside it; None where there is no room.
    taken: the nodes that others of its kind were sent to so lately that what is free does not tell of it yet."""
    rooms = [(fits(demand, node.free) - taken.count(node.node), node.node) for node in nodes]
    return min(((room, node) for room, node in rooms if room >= 1), default=(0, None))[1]


def as_toml(demand: Mapping[str, float]) -> str:
    """A demand as TOML writes it."""
    return "{ " + ", ".join(f"{name} = {amount:g}" for name, amount in sorted(demand.items())) + " }"


def _listed(nodes: Sequence[Supply]) -> str:
    shown = "; ".join(str(node) for node in nodes[:SHOWN])
    more = f"; and {len(nodes) - SHOWN} nodes more" if len(nodes) > SHOWN else ""
    return f"free of what each node has: {shown}{more}" if nodes else "there is no node"
