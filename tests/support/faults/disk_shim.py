"""A shim under the code that writes: it numbers every call that changes a folder, and can end or fail any of them.

It replaces functions of the module `os`, through which all of the product's writing goes; `DiskModel.differences` tells
when something went past it. Paths outside the folder are left alone.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from support.faults.disk_model import DiskModel, File, Folder

WRITING = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_RDWR


class Point(NamedTuple):
    """One call: its number, from 0, its name, and the path that it changes, relative to the folder."""

    number: int
    call: str
    path: Path


Before = Callable[[Point], None]
"""Called before each point, with all other writers waiting. What it raises, the caller of the point gets."""


class DiskShim:
    """Example:
    with DiskShim(run, before=look).installed():
        ...
    """

    def __init__(self, root: Path, before: Before, model: DiskModel | None = None) -> None:
        self.model = model or DiskModel(root)
        self.points: list[Point] = []
        self._root = root.resolve()
        self._before = before
        self._lock = threading.RLock()
        self._files: dict[int, File] = {}
        self._real: dict[str, Callable[..., Any]] = {}

    @contextmanager
    def installed(self) -> Iterator["DiskShim"]:
        mine = {
            "open": self._open,
            "close": self._close,
            "pwrite": self._pwrite,
            "ftruncate": self._ftruncate,
            "posix_fallocate": self._fallocate,
            "fdatasync": self._sync,
            "fsync": self._sync,
            "mkdir": self._mkdir,
            "rename": self._rename,
            "unlink": self._unlink,
            "rmdir": self._rmdir,
        }
        self._real = {name: getattr(os, name) for name in mine}
        for name, function in mine.items():
            setattr(os, name, function)
        try:
            yield self
        finally:
            for name, function in self._real.items():
                setattr(os, name, function)

    def _inside(self, path: Any, dir_fd: int | None = None) -> Path | None:
        """The path relative to the folder, None for one outside of it."""
        whole = Path(os.fsdecode(path))
        if dir_fd is not None:
            whole = Path(os.readlink(f"/proc/self/fd/{dir_fd}")) / whole
        whole = Path(os.path.abspath(whole))
        return whole.relative_to(self._root) if whole.is_relative_to(self._root) else None

    def _point(self, call: str, path: Path) -> None:
        point = Point(len(self.points), call, path)
        self.points.append(point)
        self._before(point)

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        inside = self._inside(path, dir_fd)
        if inside is None:
            return self._real["open"](path, flags, mode, dir_fd=dir_fd)
        with self._lock:
            if flags & os.O_CREAT:
                self._point("create", inside)
            fd = self._real["open"](path, flags, mode, dir_fd=dir_fd)
            if flags & os.O_CREAT:
                self._files[fd] = self.model.create(inside)
            elif not flags & os.O_DIRECTORY:
                node = self.model.at(inside)
                if isinstance(node, File):
                    self._files[fd] = node
            return fd

    def _close(self, fd: int) -> None:
        with self._lock:
            self._files.pop(fd, None)
            self._real["close"](fd)

    def _of(self, fd: int) -> Path | None:
        return self._inside(os.readlink(f"/proc/self/fd/{fd}"))

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        return self._on_file("pwrite", fd, (data, offset), lambda file: file.write(offset, bytes(data)))

    def _ftruncate(self, fd: int, size: int) -> None:
        self._on_file("ftruncate", fd, (size,), lambda file: file.resize(size))

    def _fallocate(self, fd: int, offset: int, length: int) -> None:
        def grow(file: File) -> None:
            file.resize(max(len(file.live), offset + length))

        self._on_file("posix_fallocate", fd, (offset, length), grow)

    def _on_file(self, call: str, fd: int, arguments: tuple[Any, ...], change: Callable[[File], None]) -> Any:
        with self._lock:
            path = self._of(fd)
            if path is not None:
                self._point(call, path)
            result = self._real[call](fd, *arguments)
            if path is not None:
                change(self._files[fd])
            return result

    def _sync(self, fd: int) -> None:
        with self._lock:
            path = self._of(fd)
            if path is not None:
                self._point("sync", path)
            self._real["fdatasync"](fd)
            if path is not None:
                node = self._files.get(fd) or self.model.at(path)
                assert isinstance(node, File | Folder)
                node.sync()

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        inside = self._inside(path, dir_fd)
        with self._lock:
            if inside is None or os.path.isdir(self._root / inside):
                self._real["mkdir"](path, mode, dir_fd=dir_fd)
                return
            self._point("mkdir", inside)
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            self.model.make_folder(inside)

    def _rename(self, old: Any, new: Any) -> None:
        source, target = self._inside(old), self._inside(new)
        with self._lock:
            if source is not None:
                self._point("rename", source)
            self._real["rename"](old, new)
            if source is not None and target is not None:
                self.model.rename(source, target)

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removing("unlink", path, dir_fd)

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._removing("rmdir", path, dir_fd)

    def _removing(self, call: str, path: Any, dir_fd: int | None) -> None:
        inside = self._inside(path, dir_fd)
        with self._lock:
            if inside is not None:
                self._point(call, inside)
            self._real[call](path, dir_fd=dir_fd)
            if inside is not None:
                self.model.remove(inside)
