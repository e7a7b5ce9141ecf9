"""The folder in shared memory that holds a run's published versions: whose it is, and how it goes away.

Guarantees: the folder is ours alone (mode 0700, our user), and `remove_folder` leaves nothing of it,
whichever process made it and however that process ended. It does not import torch, so that a watcher can call
it.
"""

import os
import re
import shutil
import stat
from pathlib import Path

from streamrl.errors import ConfigError, ResourceError
from streamrl.types import Version

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
        raise ResourceError(f"weights: cannot make {folder}: {error.strerror}; is shared memory mounted?") from error


def remove_folder(folder: Path) -> None:
    """Remove the folder and every version in it. Nothing happens when there is none, or it is not ours."""
    try:
        _check_ours(folder)
    except (FileNotFoundError, ResourceError):
        return
    shutil.rmtree(folder, ignore_errors=True)


def _check_ours(folder: Path) -> None:
    """A name in a folder that all users share may have been taken before us, by a link too."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ResourceError(
            f"weights: {folder} exists with mode {stat.filemode(found.st_mode)} of user {found.st_uid}; "
            f"it must be a folder of user {os.getuid()} with mode 0700: remove it"
        )
