"""Where numba keeps what it compiles of our modules, so that no process compiles what another one has.

Numba keeps it beside the module or in the user's cache folder, and refuses to compile where it may write to neither:
in a container under any user, with its packages read-only.
"""

import os
import tempfile
from pathlib import Path

from numba import config

from streamrl.system.cache_folder import cache_folder


def keep_kernels_of(module: str) -> None:
    """Have numba keep them where this process may write; a choice of the user's (NUMBA_CACHE_DIR) stands.

    module: its `__file__`. Call it before the first function is compiled.
    """
    if config.CACHE_DIR or _takes(Path(module).parent):
        return
    config.CACHE_DIR = str(cache_folder("kernels") or tempfile.mkdtemp(prefix="streamrl-kernels-"))


def compiles_kernels() -> bool:
    """Whether numba compiles in this process: NUMBA_DISABLE_JIT in its environment forbids it."""
    return not config.DISABLE_JIT


def _takes(package: Path) -> bool:
    beside = package / "__pycache__"
    there = beside if beside.exists() else package
    return there.is_dir() and os.access(there, os.W_OK)
