"""What is done at a store, by an order. Blocks as long as the store does; whoever calls it limits that."""

import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from streamrl.errors import ComponentError
from streamrl.services.storage import checkpoints
from streamrl.services.storage.orders import Fetch, Look, Order, Probe, Take, Upload
from streamrl.storage.owners import claim, newest_owner
from streamrl.storage.store import ObjectStore, read
from streamrl.storage.version_sets import VersionSets, version_of


def carry_out(order: Order, open_store: Callable[[str], ObjectStore]) -> dict[str, Any]:
    """The facts of an answer. Raises StreamRLError."""
    store = open_store(order.address)
    match order:
        case Probe():
            return probe(store)
        case Look():
            return look(store)
        case Take(_, owner):
            claim(store, owner)
            return {}
        case Upload():
            return checkpoints.upload(store, order)
        case Fetch():
            return checkpoints.fetch(store, order)


def probe(store: ObjectStore) -> dict[str, Any]:
    """Whether all that a run needs of a store is allowed there; nothing stays."""
    key, content = f"probe-{secrets.token_hex(4)}", b"streamrl looks whether it may write here"
    store.list("")
    store.put(key, [content])
    found = read(store, key)
    store.remove([key])
    if found != content:
        raise ComponentError(f"{store.address}/{key} was written with {len(content)} bytes, and read with {len(found)}")
    return {}


def look(store: ObjectStore) -> dict[str, Any]:
    """As `Looked`."""
    owner, sets = newest_owner(store), VersionSets(store).search().sets
    step = version_of(sets[0]).step if sets else None
    return {"owner": None if owner is None else msgspec.to_builtins(owner), "step": step}
