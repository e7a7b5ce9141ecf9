"""How versions reach other nodes: `weights.between_nodes` chooses one way, and this makes its two ends."""

from collections.abc import Callable

import ray

from streamrl.config import Config
from streamrl.services.weights.endpoints import RunNode, Sender
from streamrl.storage.address import local_path
from streamrl.weights.transport.pulls import Transport
from streamrl.weights.transport.shelf import VersionShelf


def make_sender(config: Config, shelf: VersionShelf, name: str) -> Sender:
    """name: of this process alone, for what others may see of it."""
    return _SENDERS[config.weights.between_nodes](config, shelf, name)


def make_transport(config: Config, run_node: RunNode) -> Transport:
    return _TRANSPORTS[config.weights.between_nodes](config, run_node)


# Each is imported where it is used: torch and its threads are for `collective` alone.


def _object_store_sender(config: Config, shelf: VersionShelf, name: str) -> Sender:
    from streamrl.services.weights.object_store import ObjectStoreSender

    return ObjectStoreSender(shelf)


def _object_store(config: Config, run_node: RunNode) -> Transport:
    from streamrl.services.weights.object_store import ObjectStoreTransport

    return ObjectStoreTransport(run_node)


def _collective_sender(config: Config, shelf: VersionShelf, name: str) -> Sender:
    from streamrl.services.weights.collective import CollectiveSender

    address = ray.util.get_node_ip_address()
    return CollectiveSender(shelf, address, config.weights.collective_backend, config.deadlines.update_s)


def _collective(config: Config, run_node: RunNode) -> Transport:
    from streamrl.services.weights.collective import CollectiveTransport

    return CollectiveTransport(run_node, ray.util.get_node_ip_address())


def _disk_sender(config: Config, shelf: VersionShelf, name: str) -> Sender:
    address = config.weights.folder or ""
    if (folder := local_path(address)) is None:
        from streamrl.services.weights.shared_store import StoreSender

        return StoreSender(shelf, address, name)
    from streamrl.services.weights.shared_folder import FolderSender

    return FolderSender(shelf, folder / name)


def _disk(config: Config, run_node: RunNode) -> Transport:
    address = config.weights.folder or ""
    if local_path(address) is None:
        from streamrl.services.weights.shared_store import StoreTransport

        return StoreTransport(run_node, address)
    from streamrl.services.weights.shared_folder import FolderTransport

    return FolderTransport(run_node)


_SENDERS: dict[str, Callable[[Config, VersionShelf, str], Sender]] = {
    "object_store": _object_store_sender,
    "collective": _collective_sender,
    "disk": _disk_sender,
}
_TRANSPORTS: dict[str, Callable[[Config, RunNode], Transport]] = {
    "object_store": _object_store,
    "collective": _collective,
    "disk": _disk,
}
