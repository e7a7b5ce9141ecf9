"""A folder of files in a store, under an address that people are given: `ADDRESS/config.json`, and `ADDRESS.commit`.

Guarantees: what is there is whole where the commit object is there and its digests hold; it is put last. Objects of
somebody else are never replaced: only a folder that has our commit object, or our mark, which is put first.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from streamrl.errors import ConfigError
from streamrl.storage.address import fault_of, scheme_of
from streamrl.storage.object_set import COMMIT, ObjectSet, keys_of, put_set
from streamrl.storage.open import open_store
from streamrl.storage.store import ObjectStore

MARK: Final = "streamrl.json"
"""The file of a folder that says that it is ours (`streamrl.models.folders`)."""


class PublishedFolder:
    """See the module. Raises ConfigError for an address that is none, or the whole of a bucket.

    Example:
        published = PublishedFolder("s3://bucket/models/mine")
        published.require_ours()
        published.put(folder, {"step": 40})
    """

    def __init__(self, address: str) -> None:
        if fault := fault_of(address):
            raise ConfigError(fault)
        parent, _, self._name = address.rstrip("/").rpartition("/")
        if not self._name or (parent.endswith("/") and scheme_of(address) != "memory"):
            raise ConfigError(f"{address} is a whole bucket; give a place in it, such as {address.rstrip('/')}/model")
        self.address = address
        self._store: ObjectStore = open_store(parent if not parent.endswith("/") else f"{parent}/")

    def require_ours(self) -> None:
        """Raises ConfigError where something is there that is not ours."""
        store, name = self._store, self._name
        if store.size(f"{name}{COMMIT}") is not None or store.size(f"{name}/{MARK}") is not None:
            return
        if store.list(f"{name}/"):
            what = f"{self.address} exists and was not written by streamrl"
            raise ConfigError(f"{what}; give an address where nothing is yet")

    def put(self, folder: Path, facts: Mapping[str, Any]) -> ObjectSet:
        """All files of a folder, which has our mark, in the place of what is there. A crash leaves the old ones, or no
        commit object."""
        self.require_ours()
        store, name = self._store, self._name
        paths = sorted(
            (path for path in folder.rglob("*") if path.is_file()), key=lambda path: (path.name != MARK, path)
        )
        store.remove([f"{name}{COMMIT}"])
        with ExitStack() as opened:
            parts = {path.relative_to(folder).as_posix(): opened.enter_context(path.open("rb")) for path in paths}
            made = put_set(store, name, parts, facts)
        store.remove(sorted(store.list(f"{name}/").keys() - set(keys_of(made))))
        return made
