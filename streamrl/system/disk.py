"""The few calls that put bytes on a disk, each with its failure as a typed error.

Guaranteed: room is reserved before a write, a sync that failed is reported and never repeated, a file that
exists is never opened as new, and a folder that was made is there after a power cut. Too little room is a
`ResourceError`, which may pass (`streamrl.system.disk_space` waits for that); anything else is a `ComponentError`,
which does not. Nothing here knows what the bytes mean.
"""

import errno
import os
from pathlib import Path

from streamrl.errors import ComponentError, FencedError, ResourceError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def create_preallocated(path: Path, num_bytes: int) -> int:
    """Create a file that must not exist, with its blocks allocated, and return its descriptor.

    Raises:
        FencedError: it exists. ResourceError: no room; nothing is left behind. ComponentError: any other failure.
    """
    fd = create_empty(path)
    try:
        allocate(fd, 0, num_bytes, path)
    except (ResourceError, ComponentError):
        os.close(fd)
        remove_file(path)
        raise
    return fd


def create_empty(path: Path) -> int:
    """Create a file that must not exist, and return its descriptor.

    Raises:
        FencedError: it exists. ResourceError: no room. ComponentError: any other failure.
    """
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError as error:
        raise FencedError(
            f"{path} exists: a writer of this name and epoch has been here. Give a restarted writer a higher epoch"
        ) from error
    except OSError as error:
        raise _failed(f"creating {path}", error, path) from error


def allocate(fd: int, offset: int, num_bytes: int, path: Path) -> None:
    """Reserve the blocks of a byte range, so that writing to it cannot run out of disk.

    Raises:
        ResourceError: the disk or the quota is full. Names the file, the bytes wanted and those that are free.
        ComponentError: any other failure.
    """
    try:
        os.posix_fallocate(fd, offset, num_bytes)
    except OSError as error:
        raise _failed(f"allocating {num_bytes} bytes for {path}", error, path, num_bytes) from error


def sync_data(fd: int, path: Path) -> None:
    """fdatasync.

    Raises:
        ComponentError: it failed. What was written since the last sync may be lost, and a second try would
            report a success that it does not have.
    """
    try:
        os.fdatasync(fd)
    except OSError as error:
        raise ComponentError(
            f"fdatasync of {path} failed: {error.strerror}. Rows written since the last sync may be lost; "
            "check the disk, then start this writer again with a higher epoch"
        ) from error


def sync_file(path: Path) -> None:
    """Make what lies in a file durable, whoever wrote it. Raises ComponentError."""
    _sync_opened(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises ComponentError."""
    _sync_opened(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync_opened(path: Path, flags: int) -> None:
    try:
        fd = os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise _failed(f"opening {path} to sync it", error, path) from error
    try:
        sync_data(fd, path)
    finally:
        os.close(fd)


def make_folder(root: Path, relative: str, sync: bool = True) -> None:
    """Make `root / relative`, with `sync` each level of it durable in the one above. `root` exists.

    A level that is there already is synced too: whoever made it may have died before that.

    Raises:
        ResourceError: no room. ComponentError: any other failure.
    """
    folder = root
    for name in Path(relative).parts:
        parent, folder = folder, folder / name
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise _failed(f"making the folder {folder}", error, folder) from error
        if sync:
            sync_folder(parent)


def write_all(fd: int, data: memoryview, offset: int, path: Path) -> None:
    """Write all of `data` at `offset`.

    Raises:
        ComponentError: the write failed. Names the file.
    """
    done = 0
    while done < len(data):
        try:
            done += os.pwrite(fd, data[done:], offset + done)
        except OSError as error:
            raise ComponentError(f"writing {len(data)} bytes to {path} failed: {error.strerror}") from error


def truncate(fd: int, num_bytes: int, path: Path) -> None:
    """Cut an open file. Raises ComponentError."""
    try:
        os.ftruncate(fd, num_bytes)
    except OSError as error:
        raise ComponentError(f"cutting {path} to {num_bytes} bytes failed: {error.strerror}") from error


def remove_file(path: Path) -> None:
    """Unlink. Raises ComponentError."""
    try:
        os.unlink(path)
    except OSError as error:
        raise ComponentError(f"removing {path} failed: {error.strerror}") from error


def move_file(old: Path, new: Path) -> bool:
    """Rename, over what is there. False when `old` is not there.

    Raises:
        ResourceError: no room for the name. ComponentError: any other failure.
    """
    try:
        os.rename(old, new)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _failed(f"renaming {old} to {new}", error, new) from error
    return True


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the disk of `path`. Raises ComponentError."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise ComponentError(f"the free space of {path} cannot be read: {error.strerror}") from error
    return found.f_bavail * found.f_frsize


def _failed(what: str, error: OSError, path: Path, wanted: int | None = None) -> ResourceError | ComponentError:
    if error.errno not in NO_ROOM:
        return ComponentError(f"{what} failed: {error.strerror}")
    needed = str(path) if wanted is None else f"{wanted} bytes of {path}"
    free = free_bytes(path.parent)
    return ResourceError(f"no room for {needed}: {error.strerror}, {free / 1e6:.1f} MB free. Free disk space")
