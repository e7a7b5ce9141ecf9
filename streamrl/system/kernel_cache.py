"""Functions that numba compiles, and where it keeps them, so that no process compiles what another one has.

Numba keeps them beside the module or in the user's cache folder, and refuses to compile where it may write to neither:
in a container under any user, with its packages read-only. It also numbers its files by an index that it has read a
moment before: of two processes that compile at once for different types, one writes over the other's file, and a third
is given a function for other types than it asked for. Replicas start at once, so each file has a name of its own here.
"""

import os
import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.caching import FunctionCache, IndexDataCacheFile

from streamrl.system.cache_folder import cache_folder


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: the function is compiled for the types that it is called with, without the GIL, and kept. options:
    of `numba.njit`. Where NUMBA_DISABLE_JIT is set, the function as it is."""

    def compiled(function: Callable[..., Any]) -> Any:
        _keep_beside(Path(function.__code__.co_filename).parent)
        # What is kept is made anew when a file of the function's folder changes, not when these options do.
        dispatcher = njit(error_model="numpy", nogil=True, **options)(function)
        if compiles_kernels():
            dispatcher._cache = _Cache(function)  # as `cache=True` does with numba's own
        return dispatcher

    return compiled


class _CacheFile(IndexDataCacheFile):
    def save(self, key: Any, data: Any) -> None:
        name = self._data_name(secrets.randbits(63))
        self._save_data(name, data)
        # What another process adds between these two lines is left out: somebody compiles it once more.
        overloads = self._load_index()
        self._save_index({**overloads, key: name})


class _Cache(FunctionCache):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        # numba's own stamp is of the function's file alone, and that takes from others.
        stamps = [(path.name, path.stat().st_mtime_ns, path.stat().st_size) for path in _sources(function)]
        self._cache_file = _CacheFile(self._cache_path, self._impl.filename_base, tuple(stamps))


def _sources(function: Callable[..., Any]) -> list[Path]:
    """The modules of its folder."""
    return sorted(Path(function.__code__.co_filename).parent.glob("*.py"))


def _keep_beside(package: Path) -> None:
    """Have numba keep them where this process may write; a choice of the user's (NUMBA_CACHE_DIR) stands."""
    if config.CACHE_DIR or _takes(package):
        return
    config.CACHE_DIR = str(cache_folder("kernels") or tempfile.mkdtemp(prefix="streamrl-kernels-"))


def compiles_kernels() -> bool:
    """Whether numba compiles in this process: NUMBA_DISABLE_JIT in its environment forbids it."""
    return not config.DISABLE_JIT


def _takes(package: Path) -> bool:
    beside = package / "__pycache__"
    there = beside if beside.exists() else package
    return there.is_dir() and os.access(there, os.W_OK)
