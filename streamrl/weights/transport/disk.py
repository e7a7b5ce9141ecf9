"""Versions through a folder that all nodes see: written there when the first node asks, read by each, removed later.

Guarantees: a file has its name only when it is whole, and never changes; folder and files are ours alone (0700, 0600);
what a writer made goes with its `close`. Who reads verifies: the folder may be slow, stale or damaged. It does not know
which versions are needed. Without torch.
"""

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from streamrl.errors import DataError
from streamrl.system.disk import allocate, write_all
from streamrl.weights.folder import make_folder, remove_folder
from streamrl.weights.transport.shelf import Item, VersionShelf

PIECE_BYTES = 16 * 2**20
"""Of one read."""


class DiskShelf:
    """Lays what is on the shelf into a folder of its own. One thread at a time.

    Example:
        path = disk.lay_out(Item("delta", version))
        disk.keep_only(shelf.still_there(kept))
    """

    def __init__(self, shelf: VersionShelf, folder: Path) -> None:
        """folder: made, its parent exists. Raises ResourceError when it is someone else's or cannot be made."""
        self._shelf = shelf
        self._folder = folder
        make_folder(folder)

    def lay_out(self, item: Item, again: bool = False) -> Path:
        """Its bytes as a file, written at the first call, or `again`: who has the older one open reads on in that.

        Raises DataError when it is gone, ResourceError when the disk is full, ComponentError when that fails.
        """
        path = self._folder / _name(item)
        if path.exists() and not again:
            return path
        content = self._shelf.content(item)
        part = path.with_name(f"{path.name}-part")
        fd = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            allocate(fd, 0, len(content), part)
            write_all(fd, content.data, 0, part)
        except BaseException:
            part.unlink()
            raise
        finally:
            os.close(fd)
        part.rename(path)
        return path

    def keep_only(self, items: Collection[Item]) -> None:
        """Remove all other files. Whoever has one open reads on, or finds that it is gone."""
        kept = {self._folder / _name(item) for item in items}
        for path in set(self._folder.iterdir()) - kept:
            if not path.name.endswith("-part"):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove all of it."""
        remove_folder(self._folder)


def pieces(path: Path, what: str) -> Iterator[bytes]:
    """The bytes of a file that another node wrote. Raises DataError when it is gone or cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            while piece := file.read(PIECE_BYTES):
                yield piece
    except OSError as error:
        raise DataError(
            f"weights: {what}: {path} cannot be read: {error.strerror}; is weights.folder the same on every node?"
        ) from error


def _name(item: Item) -> str:
    return f"{item.version}.{item.kind}"
