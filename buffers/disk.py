"""The few calls that put bytes on a disk, each with its failure as a typed error.

Guaranteed: room is reserved before a write, a sync that failed is reported and never repeated, and a file
that exists is never opened as new. Nothing here knows what the bytes mean.
"""

import errno
import os
from pathlib import Path

from streamrl.errors import ComponentError, FencedError, ResourceError


def create_preallocated(path: Path, num_bytes: int) -> int:
    """Create a file that must not exist, with its blocks allocated, and return its descriptor.

    Raises:
        FencedError: it exists. ResourceError: no room; nothing is left behind.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError as error:
        raise FencedError(
            f"{path} exists: a writer of this name and epoch has been here. Give a restarted writer a higher epoch"
        ) from error
    try:
        allocate(fd, 0, num_bytes, path)
    except ResourceError:
        os.close(fd)
        path.unlink()
        raise
    return fd


def allocate(fd: int, offset: int, num_bytes: int, path: Path) -> None:
    """Reserve the blocks of a byte range, so that writing to it cannot run out of disk.

    Raises:
        ResourceError: the disk or the quota is full. Names the file and the bytes wanted.
    """
    try:
        os.posix_fallocate(fd, offset, num_bytes)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise ComponentError(f"cannot preallocate {num_bytes} bytes for {path}: {error.strerror}") from error
        raise ResourceError(
            f"no room for {num_bytes} bytes of {path}: {error.strerror}. Free disk space, or lower "
            "queue.byte_budget and queue.segment_bytes"
        ) from error


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


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_data(fd, folder)
    finally:
        os.close(fd)


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
