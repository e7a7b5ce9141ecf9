"""How versions reach other nodes: the sending end of each way, beside the actor of the run's node, and the receiving
end of each, in the actor of another. `weights.between_nodes` chooses.

A sender gives what lies on the shelf (`streamrl.weights.shelf`) to a node; what `give` answers is a matter between the
two ends of one way. None of them checks bytes: `streamrl.weights.pulls` does.
"""

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Protocol, TypeVar

import ray
from ray.actor import ActorHandle

from services.deadline import within
from services.deaths import explain_death
from streamrl.config import Config
from streamrl.weights.pulls import Transport, WayStep
from streamrl.weights.shelf import Item, VersionShelf

T = TypeVar("T")


class Sender(Protocol):
    """The sending end. One that has to meet a node before it can give it anything has a `meet`, too."""

    async def give(self, node: str, item: Item, told: Any) -> Any:
        """Have a node get an item. Raises DataError when it is gone, ComponentError when the node does not take it."""
        ...

    def keep_only(self, items: Collection[Item]) -> None:
        """Nobody asks for any other item from now on."""
        ...

    async def close(self) -> None: ...


class Home:
    """The run's own node as another one sees it: every call has a limit, and fails with a typed error."""

    def __init__(self, actor: ActorHandle, node: str, limit_s: float) -> None:
        self._actor = actor
        self.node = node
        self.limit_s = limit_s

    async def way(self, manifest: bytes, have: Any) -> list[WayStep]:
        return await self.asked(self._actor.way.remote(manifest, have), "the way to a version")

    async def meet(self) -> Any:
        return await self.asked(self._actor.meet.remote(self.node), "a meeting")

    async def give(self, step: WayStep, told: Any = None) -> Any:
        return await self.asked(self.giving(step, told), str(Item(step.kind, step.version)))

    def giving(self, step: WayStep, told: Any) -> Awaitable[Any]:
        return self._actor.give.remote(self.node, step.kind, step.version, told)

    async def asked(self, answer: Awaitable[T], what: str) -> T:
        try:
            return await within(self.limit_s, answer, who=self.node, what=f"{what}, from the run's node,")
        except ray.exceptions.RayError as error:
            raise explain_death("the run's node", error) from error


class Given:
    """What was given to whom. A node that asks again for what it was given could not use it."""

    def __init__(self) -> None:
        self._given: set[tuple[str, Item]] = set()

    def again(self, node: str, item: Item) -> bool:
        """Whether this node was given it before; it is from now on."""
        known = (node, item) in self._given
        self._given.add((node, item))
        return known

    def keep_only(self, items: Collection[Item]) -> None:
        self._given = {(node, item) for node, item in self._given if item in items}


def make_sender(config: Config, shelf: VersionShelf, name: str) -> Sender:
    """name: of this process alone, for what others may see of it."""
    return _SENDERS[config.weights.between_nodes](config, shelf, name)


def make_transport(config: Config, home: Home) -> Transport:
    return _TRANSPORTS[config.weights.between_nodes](config, home)


# Each is imported where it is used: torch and its threads are for `collective` alone.


def _object_store_sender(config: Config, shelf: VersionShelf, name: str) -> Sender:
    from services.object_store import ObjectStoreSender

    return ObjectStoreSender(shelf)


def _object_store(config: Config, home: Home) -> Transport:
    from services.object_store import ObjectStoreTransport

    return ObjectStoreTransport(home)


def _collective_sender(config: Config, shelf: VersionShelf, name: str) -> Sender:
    from services.collective import CollectiveSender

    address = ray.util.get_node_ip_address()
    return CollectiveSender(shelf, address, config.weights.collective_backend, config.deadlines.update_s)


def _collective(config: Config, home: Home) -> Transport:
    from services.collective import CollectiveTransport

    return CollectiveTransport(home, ray.util.get_node_ip_address())


def _disk_sender(config: Config, shelf: VersionShelf, name: str) -> Sender:
    from services.shared_folder import FolderSender

    return FolderSender(shelf, Path(config.weights.folder or "") / name)


def _disk(config: Config, home: Home) -> Transport:
    from services.shared_folder import FolderTransport

    return FolderTransport(home)


_SENDERS: dict[str, Callable[[Config, VersionShelf, str], Sender]] = {
    "object_store": _object_store_sender,
    "collective": _collective_sender,
    "disk": _disk_sender,
}
_TRANSPORTS: dict[str, Callable[[Config, Home], Transport]] = {
    "object_store": _object_store,
    "collective": _collective,
    "disk": _disk,
}
