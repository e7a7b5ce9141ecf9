"""Removing a large file without holding up who waits for the same disk.

    name goes at once  ->  nobody else has it open or mapped?  ->  cut in pieces, each durable before the next

Freeing the blocks of a file is part of a commit of the file system's journal, and every fdatasync of that disk waits
for it: where the disk is told of what is free (ext4 with `discard`) for a tenth of a second and more for 64 MiB. In
pieces no one waits for more than one of them.

Guaranteed: a file that somebody else has open, mapped or under another name is never cut under them; its blocks go with
the last of them, as they do without all this. A disk that fails is told, though the file it failed at is not wanted any
more: what is written next may not be safe on it.
"""

import fcntl
import os
import shutil
import signal
from pathlib import Path

from streamrl.system.disk import NO_ROOM

PIECE_BYTES = 2**21
"""Freed at once: a wait of some 5 ms where 64 MiB took 100."""
MOST_PIECES = 64
"""Of one file: a very large one is cut in larger pieces, or its removal would take minutes."""


def take_name(path: Path) -> int | None:
    """Remove a file's name and return a descriptor that holds its blocks; or None, see `open_to_remove`.

    Raises OSError.
    """
    fd = open_to_remove(path)
    if fd is not None:
        try:
            os.unlink(path)
        except OSError:
            os.close(fd)
            raise
    return fd


def open_to_remove(path: Path) -> int | None:
    """A descriptor of a file whose name goes next. None when it is not there, or may not be written to: then it is
    removed here, and its blocks go with the name. Raises OSError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError:
        os.unlink(path)
        return None


def has_other_user(fd: int, names: int = 0) -> bool:
    """Whether a file that nobody can open any more is open or mapped anywhere else, or may be: some file systems cannot
    tell; or has more names than these: a copy by links, as backups make them, is somebody's.

    The kernel gives a write lease only to a file's one user; without a name that is known there is none to come. Who
    opens the file just then waits for the lease to end, and the kernel tells its holder by a signal: by default by one
    that ends the process.
    """
    if os.fstat(fd).st_nlink > names:
        return True
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return True
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def free(fd: int) -> None:
    """Free the blocks of a nameless file that nobody else uses, and close it. Blocks for as long as the disk takes.

    Raises OSError where the disk fails; the file is closed then too.
    """
    try:
        left = os.fstat(fd).st_size
        piece = max(PIECE_BYTES, -(-left // MOST_PIECES))
        while left:
            left = max(0, left - piece)
            os.ftruncate(fd, left)
            os.fsync(fd)
    except OSError as error:
        # Where cutting takes room itself (copy on write) closing has to free the rest at once.
        if error.errno not in NO_ROOM:
            raise
    finally:
        os.close(fd)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it. Raises OSError."""
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        fd = take_name(path)
        if fd is None:
            continue
        if has_other_user(fd):
            os.close(fd)
        else:
            free(fd)
    shutil.rmtree(folder)
