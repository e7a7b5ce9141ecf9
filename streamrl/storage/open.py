"""From an address to its store: a folder needs no package, and everything else is fsspec's."""

from streamrl.errors import ConfigError
from streamrl.storage.address import fault_of, local_path
from streamrl.storage.folder_store import FolderStore
from streamrl.storage.store import ObjectStore


def open_store(address: str) -> ObjectStore:
    """The store of an address. Nothing is asked of it yet. Raises ConfigError for an address that is none, and without
    the package that it needs."""
    if fault := fault_of(address):
        raise ConfigError(fault)
    path = local_path(address)
    if path is not None:
        return FolderStore(path)
    # Here and not above: who writes into folders has no use for fsspec.
    from streamrl.storage.fsspec_store import FsspecStore

    return FsspecStore(address)
