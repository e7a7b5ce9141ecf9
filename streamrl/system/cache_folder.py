"""Where this user keeps what can be made again: prepared prompts, compiled kernels."""

import os
import stat
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """`$XDG_CACHE_HOME/streamrl/NAME` or that of `~/.cache`; where neither can be written, as in a container that runs
    under any user, one for this user alone among the temporary files. None: that cannot be written either."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    own, shared = base / "streamrl" / name, Path(tempfile.gettempdir()) / f"streamrl-{name}-{os.getuid()}"
    return next((folder for folder in (own, shared) if _is_ours(folder)), None)


def _is_ours(folder: Path) -> bool:
    """Whether the folder is there, made now if need be, of this user, and can be written: among the temporary files
    somebody else could have put one there."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and os.access(folder, os.W_OK)
