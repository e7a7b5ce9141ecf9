"""Versions through an object store that all nodes reach: put when the first node asks, read by each, removed later.

Guarantees: a key is told to a reader when its object is there, and never put again: what has to be prepared anew has
another key. What a writer put goes with its `close`. Who reads verifies. It does not know which versions are needed.
Without torch.
"""

import contextlib
from collections.abc import Collection, Iterator

from streamrl.errors import ComponentError, ConfigError, DataError
from streamrl.storage.store import PIECE_BYTES, ObjectStore
from streamrl.weights.transport.shelf import Item, VersionShelf


class StoreShelf:
    """Lays what is on the shelf into a store, below a name of its own. One thread at a time, but for `let_go`.

    Example:
        key = stored.lay_out(Item("delta", version))
        stored.let_go(shelf.still_there(kept))
        stored.remove_old()
    """

    def __init__(self, shelf: VersionShelf, store: ObjectStore, name: str) -> None:
        self._shelf = shelf
        self._store = store
        self._name = name
        self._keys: dict[Item, str] = {}
        self._old: list[str] = []
        """Keys that nobody is told any more."""
        self._count = 0

    def lay_out(self, item: Item, again: bool = False) -> str:
        """The key of its bytes, put at the first call, or `again`: who reads the older one reads on in that.

        Raises DataError when it is gone, and what the store fails with.
        """
        if item in self._keys and not again:
            return self._keys[item]
        content = self._shelf.content(item).data
        key = f"{self._name}/{self._count}-{item.version}.{item.kind}"
        self._count += 1
        pieces = (content[begin : begin + PIECE_BYTES] for begin in range(0, len(content), PIECE_BYTES))
        self._store.put(key, pieces)
        if item in self._keys:
            self._old.append(self._keys[item])
        self._keys[item] = key
        return key

    def let_go(self, items: Collection[Item]) -> None:
        """Nobody asks for any other item from now on. Asks nothing of the store."""
        for item in [item for item in list(self._keys) if item not in items]:
            self._old.append(self._keys.pop(item))

    def remove_old(self) -> None:
        """Remove what was let go; whoever reads one finds that it is gone. A store that fails keeps it until later."""
        old = list(self._old)
        with contextlib.suppress(ComponentError, ConfigError):
            self._store.remove(old)
            del self._old[: len(old)]

    def close(self) -> None:
        """Remove all of it."""
        self.let_go(())
        self.remove_old()


def stored_pieces(store: ObjectStore, key: str, what: str) -> Iterator[bytes]:
    """The bytes of an object that another node put. Raises DataError when it is gone or cannot be read."""
    try:
        yield from store.get(key)
    except (ComponentError, ConfigError) as error:
        raise DataError(f"weights: {what}: {error}") from error
