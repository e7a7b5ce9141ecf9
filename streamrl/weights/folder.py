"""The folder in shared memory that holds a run's published versions: whose it is, and how it goes away.

Guarantees: the folder is ours alone (mode 0700, our user), and `remove_folder` leaves nothing of it,
whichever process made it and however that process ended. It does not import torch, so that a watcher can call
it.
"""

import contextlib
import fcntl
import mmap
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from streamrl.errors import ConfigError, DataError, ResourceError
from streamrl.types import Version
from streamrl.weights.manifest import WeightManifest

SHM_ROOT = Path("/dev/shm")
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def shm_folder(run_id: str, root: Path = SHM_ROOT) -> Path:
    """Where the versions of a run lie. Raises ConfigError for an id that is no plain file name."""
    if not RUN_ID.fullmatch(run_id):
        raise ConfigError(f"run id {run_id!r} cannot name a folder: use letters, digits, '.', '_' and '-'")
    return root / f"streamrl-{run_id}"


def version_file(folder: Path, version: Version) -> Path:
    return folder / f"{version}.weights"


def make_folder(folder: Path) -> None:
    """Create the folder, or accept one of ours. Raises ResourceError when it is someone else's or open to
    others."""
    try:
        folder.mkdir(mode=0o700, parents=False)
    except FileExistsError:
        _check_ours(folder)
    except OSError as error:
        way_out = f"is {folder.parent} mounted, and may this user write there?"
        raise ResourceError(f"weights: cannot make {folder}: {error.strerror}; {way_out}") from error


def remove_folder(folder: Path) -> None:
    """Remove the folder and every version in it. Nothing happens when there is none, or it is not ours."""
    try:
        _check_ours(folder)
    except (FileNotFoundError, ResourceError):
        return
    shutil.rmtree(folder, ignore_errors=True)


def lock_version(path: Path) -> int:
    """A descriptor of a version's file, which is not written again until the descriptor is closed.

    Raises FileNotFoundError when the version was taken back, at any moment, and OSError when it cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileNotFoundError(f"{path} was taken back, and is being written again") from None
        # It may have been taken back before it was locked.
        if not os.path.samestat(os.fstat(fd), path.lstat()):
            raise FileNotFoundError(f"{path} was taken back")
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def open_version(path: Path) -> Iterator[int]:
    """A descriptor of a version's file, to map it inside the context.

    It is locked against being written again until it and every mapping that was made of it are gone: a mapping keeps
    the open file, and the open file the lock, whatever becomes of the process. Raises as `lock_version` does.
    """
    fd = lock_version(path)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def mapped(path: Path, manifest: WeightManifest) -> Iterator[memoryview]:
    """All bytes of a version's file, read-only, inside the context. Raises FileNotFoundError, and DataError for a file
    of another size."""
    with open_version(path) as fd:
        if os.fstat(fd).st_size != manifest.total_bytes:
            raise DataError(f"weights: version {manifest.version}: {path} has not the size that its manifest says")
        content = mmap.mmap(fd, manifest.total_bytes, access=mmap.ACCESS_READ)
    view = memoryview(content)
    try:
        yield view
    finally:
        # BufferError: an array still refers to it, and the last one unmaps it.
        with contextlib.suppress(BufferError):
            view.release()
            content.close()


def _check_ours(folder: Path) -> None:
    """A name in a folder that all users share may have been taken before us, by a link too."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ResourceError(
            f"weights: {folder} exists with mode {stat.filemode(found.st_mode)} of user {found.st_uid}; "
            f"it must be a folder of user {os.getuid()} with mode 0700: remove it"
        )
