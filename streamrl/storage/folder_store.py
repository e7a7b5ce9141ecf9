"""Objects as the files of a folder, of this machine or mounted from another.

Guarantees: an object is there whole or not at all, and after a power cut, too: it is written under another name, synced
and renamed. Nobody else's files are touched.
"""

import contextlib
import os
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from streamrl.errors import ComponentError, ConfigError, ResourceError
from streamrl.storage.store import PIECE_BYTES, Buffer, MissingObjectError
from streamrl.system.disk import NO_ROOM, sync_data, sync_folder

PART: Final = ".part-"
"""In the name of a file that is being written."""


class FolderStore:
    """See the module. The folder is made with the first object."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder)
        self._folder = folder

    def put(self, key: str, pieces: Iterable[Buffer]) -> None:
        path = self._path(key)
        part = path.with_name(f"{path.name}{PART}{uuid.uuid4().hex[:8]}")
        with self._explained(f"writing {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with part.open("xb", buffering=0) as file:
                    for piece in pieces:
                        _write_all(file.fileno(), memoryview(piece).cast("B"))
                    sync_data(file.fileno(), part)
                part.rename(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
            sync_folder(path.parent)

    def get(self, key: str) -> Iterator[bytes]:
        path = self._path(key)
        with self._explained(f"reading {path}"):
            try:
                file = path.open("rb", buffering=0)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise MissingObjectError(f"{path} is not there") from error
            with file:
                while piece := file.read(PIECE_BYTES):
                    yield piece

    def size(self, key: str) -> int | None:
        with self._explained(f"looking at {self._path(key)}"):
            try:
                return self._path(key).stat().st_size
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, prefix: str) -> dict[str, int]:
        found = {}
        with self._explained(f"listing {self._folder}"):
            for path in (self._folder / prefix).rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    if path.is_file():
                        found[path.relative_to(self._folder).as_posix()] = path.stat().st_size
        return found

    def remove(self, keys: Collection[str]) -> None:
        for path in map(self._path, keys):
            with self._explained(f"removing {path}"):
                path.unlink(missing_ok=True)
            # What was made for the object goes; a folder that is not empty stays.
            if path.parent != self._folder:
                with contextlib.suppress(OSError):
                    path.parent.rmdir()

    def _path(self, key: str) -> Path:
        return self._folder / key

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (PermissionError, NotADirectoryError, FileExistsError) as error:
            why = f"{error.strerror}; give a folder in which this user may write"
            raise ConfigError(f"{what} failed: {why}") from error
        except OSError as error:
            if isinstance(error, ResourceError):
                raise
            if error.errno in NO_ROOM:
                raise ResourceError(
                    f"{what} failed: {error.strerror}; free some space, or give another disk"
                ) from error
            raise ComponentError(f"{what} failed: {error.strerror or error}") from error


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]
