"""A folder in shared memory that only this user can enter: for weights on their way to a server, and its socket."""

import shutil
import tempfile
from pathlib import Path

from streamrl.errors import ResourceError
from streamrl.weights.folder import SHM_ROOT


def make_private_folder(prefix: str) -> Path:
    """A new folder whose name begins with `prefix`, with mode 0700. Raises ResourceError."""
    try:
        return Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=SHM_ROOT))
    except OSError as error:
        raise ResourceError(
            f"no folder can be made in {SHM_ROOT}: {error.strerror}; a server reads its weights from there"
        ) from error


def remove_private_folder(folder: Path) -> None:
    """Remove it with all that is in it. Nothing happens when it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
