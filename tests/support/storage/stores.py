"""Stores for tests: one of memory that nobody else has, one whose user dies at a call of his choice, one whose listing
lags."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal
from uuid import uuid4

from streamrl.storage.open import open_store
from streamrl.storage.store import Buffer, ObjectStore

How = Literal["before", "after", "half"]
"""When a process dies: before the store does what it is asked, after it, or when half of that is done."""


class DiedError(BaseException):
    """As a process that is killed: nothing of ours catches it."""


def memory_store() -> ObjectStore:
    return open_store(f"memory://{uuid4().hex}")


class DyingStore:
    """Passes calls on to `store`, and dies at the one of number `at`, counted from 0. calls: so far."""

    def __init__(self, store: ObjectStore, at: int = -1, how: How = "before") -> None:
        self.address = store.address
        self._store, self._at, self._how = store, at, how
        self.calls = 0

    def put(self, key: str, pieces: Iterable[Buffer]) -> None:
        content = b"".join(bytes(piece) for piece in pieces)
        dies = self._dies()
        if dies and self._how == "half":
            self._store.put(key, [content[: len(content) // 2]])
        elif not dies or self._how == "after":
            self._store.put(key, [content])
        self._end(dies)

    def get(self, key: str) -> Iterator[bytes]:
        dies = self._dies()
        self._end(dies)
        return self._store.get(key)

    def size(self, key: str) -> int | None:
        self._end(self._dies())
        return self._store.size(key)

    def list(self, prefix: str) -> dict[str, int]:
        self._end(self._dies())
        return self._store.list(prefix)

    def remove(self, keys: Collection[str]) -> None:
        dies, ordered = self._dies(), list(keys)
        if dies and self._how == "half":
            self._store.remove(ordered[: len(ordered) // 2])
        elif not dies or self._how == "after":
            self._store.remove(ordered)
        self._end(dies)

    def _dies(self) -> bool:
        self.calls += 1
        return self.calls - 1 == self._at

    def _end(self, dies: bool) -> None:
        if dies:
            raise DiedError


class LaggingStore(DyingStore):
    """Its listing is the one of `mark`: what was put or removed since does not show there."""

    def mark(self) -> None:
        self._listed = self._store.list("")

    def unlist(self, lacks: Callable[[str], bool]) -> None:
        """It lacks these, too."""
        self._listed = {key: size for key, size in self._listed.items() if not lacks(key)}

    def list(self, prefix: str) -> dict[str, int]:
        return {key: size for key, size in self._listed.items() if key.startswith(prefix)}
