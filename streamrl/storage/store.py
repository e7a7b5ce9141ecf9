"""The one interface to what keeps objects: put, get, size, list, remove. Nothing else of a store is used.

Assumed of a store: `get` and `size` of a key that was put find it at once. Not assumed: that objects can be renamed or
appended to, that a put is seen whole or not at all, that a listing has what was put last, or lacks what was removed.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, Protocol

from streamrl.errors import DataError

Buffer = bytes | bytearray | memoryview

PIECE_BYTES: Final = 16 * 2**20
"""Of one read, and at least of one part of a large object."""


class MissingObjectError(DataError):
    """There is no object of this key."""


class ObjectStore(Protocol):
    """The objects below one address, by keys such as `step_000040/manifest.json`.

    All methods raise ComponentError for a store that fails, ConfigError for one that is not there or that does not
    let us in, and ResourceError where it has no room.
    """

    address: str

    def put(self, key: str, pieces: Iterable[Buffer]) -> None:
        """An object of these bytes, in the place of one that is there. What `pieces` raises is raised on, and where the
        store can, nothing is put then."""
        ...

    def get(self, key: str) -> Iterator[bytes]:
        """Its bytes in order. Raises MissingObjectError, with the first piece at the latest."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes of an object; None where there is none."""
        ...

    def list(self, prefix: str) -> dict[str, int]:
        """Bytes of each object whose key begins with `prefix`, which ends with / or is empty. It may lag."""
        ...

    def remove(self, keys: Collection[str]) -> None:
        """Remove objects; one that is not there is passed over."""
        ...


def read(store: ObjectStore, key: str) -> bytes:
    """A small object, whole. Raises MissingObjectError."""
    return b"".join(store.get(key))
