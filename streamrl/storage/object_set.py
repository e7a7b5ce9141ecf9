"""A set of objects that is there as one: its commit object is put last, and goes first.

    step_000040-0-1f9c0a7e/...          the objects
    step_000040-0-1f9c0a7e.commit       their sizes and digests (XXH3-128), under a digest of its own

Guarantees: a set is taken for one only by its commit object, and fetched only if every byte has the digest that stands
there; whatever a crash leaves, at any call of the store, is no set. Listings are never trusted to say that there is
none: what they name is looked at by its key.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

import msgspec
import xxhash

from streamrl.errors import DataError
from streamrl.storage.store import PIECE_BYTES, Buffer, MissingObjectError, ObjectStore, read
from streamrl.system.disk import create_preallocated, make_folder, sync_data, sync_folder, write_all

FORMAT: Final = 1
COMMIT: Final = ".commit"

Source = bytes | BinaryIO
"""Of an object: its bytes, or a file that is read from its beginning."""


class StoredObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One object of a set. size: bytes. digest: XXH3-128, hex."""

    name: str
    size: int
    digest: str


class ObjectSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a commit object says. facts: of the caller's, plain JSON."""

    format: int
    name: str
    objects: tuple[StoredObject, ...]
    facts: dict[str, Any]

    @property
    def num_bytes(self) -> int:
        return sum(one.size for one in self.objects)


def put_set(
    store: ObjectStore,
    name: str,
    parts: Mapping[str, Source],
    facts: Mapping[str, Any],
    expected: Mapping[str, str] | None = None,
) -> ObjectSet:
    """Put all parts, then the commit object. The name is nobody's yet.

    expected: digests of parts that are known; DataError where another one was read, and nothing is committed then.
    """
    objects = tuple(_put(store, f"{name}/{part}", part, source) for part, source in parts.items())
    for one in objects:
        wanted = (expected or {}).get(one.name, one.digest)
        if one.digest != wanted:
            raise DataError(f"{one.name} was read with digest {one.digest}, and is to have {wanted}: it is damaged")
    made = ObjectSet(FORMAT, name, objects, dict(facts))
    body = msgspec.json.encode(made)
    store.put(f"{name}{COMMIT}", [xxhash.xxh3_128_hexdigest(body).encode() + b"\n", body])
    return made


def read_set(store: ObjectStore, name: str) -> ObjectSet:
    """What is committed under a name; its objects are not looked at. Raises MissingObjectError where nothing is, and
    DataError for a commit object that is torn or damaged."""
    where = f"{store.address}: {name}{COMMIT}"
    digest, _, body = read(store, f"{name}{COMMIT}").partition(b"\n")
    if xxhash.xxh3_128_hexdigest(body).encode() != digest:
        raise DataError(f"{where} is torn or damaged")
    try:
        found = msgspec.json.decode(body, type=ObjectSet)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{where} is not readable: {error}") from error
    if found.format != FORMAT:
        raise DataError(f"{where} has format {found.format}; this program reads {FORMAT}")
    if found.name != name:
        raise DataError(f"{where} is of {found.name}: it was copied")
    return found


def missing_objects(store: ObjectStore, found: ObjectSet) -> list[str]:
    """The objects of a set that are not there with their sizes. Their bytes are not read."""
    return [one.name for one in found.objects if store.size(f"{found.name}/{one.name}") != one.size]


def fetch_set(store: ObjectStore, found: ObjectSet, folder: Path) -> None:
    """Write all objects of a set below `folder`, which exists and has none of them, durably.

    Raises:
        DataError: one is missing, or its bytes are not those that were committed. Names it. ResourceError: no room.
    """
    for one in found.objects:
        place = PurePosixPath(one.name)
        if place.is_absolute() or ".." in place.parts:
            raise DataError(f"{store.address}: {found.name}: {one.name!r} is no name of an object")
        if place.parent.parts:
            make_folder(folder, str(place.parent))
        _fetch(store, f"{found.name}/{one.name}", one, folder / place)
    for written in {folder / PurePosixPath(one.name).parent for one in found.objects}:
        sync_folder(written)


def remove_set(store: ObjectStore, name: str, keys: Iterable[str] = ()) -> None:
    """Remove a set: its commit object, then everything below its name. keys: that are known to be there, whatever a
    listing says."""
    store.remove([f"{name}{COMMIT}"])
    store.remove(sorted({*store.list(f"{name}/"), *keys}))


def keys_of(found: ObjectSet) -> list[str]:
    return [f"{found.name}/{one.name}" for one in found.objects]


def set_names(listed: Iterable[str]) -> list[str]:
    """The names that keys of objects speak of, committed or not, in order.

    Example:
        >>> set_names(["a.commit", "a/x", "b/x", "other"])
        ['a', 'b']
    """
    names = {key.partition("/")[0] if "/" in key else key.removesuffix(COMMIT) for key in listed if _is_of_set(key)}
    return sorted(names)


def _is_of_set(key: str) -> bool:
    return "/" in key or key.endswith(COMMIT)


class _Counted:
    """Passes pieces on, and knows their size and digest."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._digest = xxhash.xxh3_128()
        self.size = 0

    def __iter__(self) -> Iterator[Buffer]:
        for piece in [self._source] if isinstance(self._source, bytes) else _pieces(self._source):
            self._digest.update(piece)
            self.size += len(piece)
            yield piece

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        yield piece


def _put(store: ObjectStore, key: str, name: str, source: Source) -> StoredObject:
    counted = _Counted(source)
    store.put(key, counted)
    there = store.size(key)
    if there != counted.size:
        raise DataError(f"{store.address}: {key} was put with {counted.size} bytes, and has {there}")
    return StoredObject(name, counted.size, counted.digest)


def _fetch(store: ObjectStore, key: str, one: StoredObject, path: Path) -> None:
    digest, end = xxhash.xxh3_128(), 0
    handle = create_preallocated(path, max(1, one.size))
    try:
        os.ftruncate(handle, one.size)
        for piece in store.get(key):
            if end + len(piece) > one.size:
                raise DataError(f"{store.address}: {key} has more than its {one.size} bytes")
            write_all(handle, memoryview(piece), end, path)
            digest.update(piece)
            end += len(piece)
        if (end, digest.hexdigest()) != (one.size, one.digest):
            raise DataError(
                f"{store.address}: {key} has {end} bytes with digest {digest.hexdigest()}, committed were {one.size} "
                f"with {one.digest}: it is damaged"
            )
        sync_data(handle, path)
    finally:
        os.close(handle)


__all__ = [
    "MissingObjectError",
    "ObjectSet",
    "StoredObject",
    "fetch_set",
    "keys_of",
    "missing_objects",
    "put_set",
    "read_set",
    "remove_set",
    "set_names",
]
