"""Sets of objects that are versions of one thing: the newest whole one, and which of the others go.

Guarantees: at every moment, also between any two calls of the store, the newest set that was whole before is still
there, or a newer one is; a set goes by its commit object first. What cannot be read stays for a person to look at, as
long as the budget has room for it. One process adds; any may read.
"""

import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from streamrl.errors import DataError, ResourceError
from streamrl.storage.object_set import (
    ObjectSet,
    Source,
    fetch_set,
    keys_of,
    missing_objects,
    put_set,
    read_set,
    remove_set,
    set_names,
)
from streamrl.storage.store import MissingObjectError, ObjectStore
from streamrl.types import Version

PREFIX: Final = "step_"
_COMMIT_BYTES: Final = 64 * 2**10
"""What a commit object takes, generously."""


class Found(NamedTuple):
    """sets: the committed ones, the newest first. unreadable: by name, why a commit object cannot be read. leftovers:
    names without a commit object. sizes: bytes of each name, as far as they are listed."""

    sets: list[ObjectSet]
    unreadable: dict[str, str]
    leftovers: list[str]
    sizes: dict[str, int]


class Fetched(NamedTuple):
    """newest: the set that was fetched; None where none is whole. skipped: a line with the reason for each that was
    passed over."""

    newest: ObjectSet | None
    skipped: tuple[str, ...]


class VersionSets:
    """See the module.

    Example:
        sets = VersionSets(store)
        sets.add(Version(0, 40), {"manifest.json": b"{}"}, {}, keep=2)
        fetched = sets.fetch_newest(folder)
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def search(self) -> Found:
        """What there is, by one listing and one look at each commit object."""
        listed = {key: size for key, size in self._store.list("").items() if key.startswith(PREFIX)}
        sets, unreadable, leftovers = [], {}, []
        sizes = dict.fromkeys(set_names(listed), 0)
        for key, size in listed.items():
            for name in set_names([key]):
                sizes[name] += size
        for name in sizes:
            try:
                one = read_set(self._store, name)
                version_of(one)
            except MissingObjectError:
                leftovers.append(name)
            except DataError as error:
                unreadable[name] = str(error)
            else:
                sets.append(one)
        return Found(sorted(sets, key=version_of, reverse=True), unreadable, leftovers, sizes)

    def add(
        self,
        version: Version,
        parts: Mapping[str, Source],
        facts: Mapping[str, Any],
        *,
        keep: int,
        byte_budget: int | None = None,
        expected: Mapping[str, str] | None = None,
    ) -> ObjectSet:
        """Commit one version, and remove those that `keep` no longer covers.

        byte_budget: of all versions, this one included; None is room for `keep` + 2 of this size. Older ones go before
        it would be passed, never the newest whole one. expected: as in `put_set`.

        Raises ResourceError where that one and this do not fit the budget together; nothing is put then.
        """
        for name in self.search().leftovers:
            remove_set(self._store, name)
        found = self.search()
        needed = sum(map(_size, parts.values())) + _COMMIT_BYTES
        self._free(found, needed, (keep + 2) * needed if byte_budget is None else byte_budget)
        name = f"{PREFIX}{version.step:06d}-{version.incarnation}-{secrets.token_hex(4)}"
        made = put_set(self._store, name, parts, {**facts, "version": list(version)}, expected)
        self._remove_older(version, keep)
        return made

    def fetch_newest(self, folder: Path, above: Version | None = None) -> Fetched:
        """Write the newest whole set into a folder below `folder` that has its name; of a damaged one nothing stays.
        above: only a version higher than that."""
        found = self.search()
        skipped = [*found.unreadable.values()]
        for one in found.sets:
            if above is not None and version_of(one) <= above:
                break
            place = folder / one.name
            place.mkdir(parents=True)
            try:
                fetch_set(self._store, one, place)
            except DataError as error:
                skipped.append(str(error))
                _remove_tree(place)
            else:
                return Fetched(one, tuple(skipped))
        return Fetched(None, tuple(skipped))

    def _free(self, found: Found, needed: int, budget: int) -> None:
        excess = sum(found.sizes.values()) + needed - budget
        if excess <= 0:
            return
        for name, keys in self._in_order_of_worth(found):
            remove_set(self._store, name, keys)
            excess -= found.sizes[name]
            if excess <= 0:
                return
        raise ResourceError(
            f"a checkpoint of {needed:,} bytes and the one before it do not fit checkpoint.byte_budget = {budget:,} in "
            f"{self._store.address}; allow {excess:,} more"
        )

    def _in_order_of_worth(self, found: Found) -> Iterator[tuple[str, list[str]]]:
        """What may go with its keys, the least worth first; not the newest whole one."""
        yield from ((name, []) for name in found.unreadable)
        kept = next((one for one in found.sets if not missing_objects(self._store, one)), None)
        yield from ((one.name, keys_of(one)) for one in reversed(found.sets) if one is not kept)

    def _remove_older(self, newest: Version, keep: int) -> None:
        """Keep the `keep` highest versions up to `newest`."""
        up_to = [one for one in self.search().sets if version_of(one) <= newest]
        for one in up_to[keep:]:
            remove_set(self._store, one.name, keys_of(one))


def version_of(found: ObjectSet) -> Version:
    """Raises DataError for a set that says none."""
    match found.facts.get("version"):
        case [int(incarnation), int(step)]:
            return Version(incarnation, step)
        case other:
            raise DataError(f"{found.name} says no version: {other!r}")


def _size(source: Source) -> int:
    return len(source) if isinstance(source, bytes) else source.seek(0, 2)


def _remove_tree(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
