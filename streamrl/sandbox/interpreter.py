"""The Python that runs programs, and the folders of this machine that it needs: nothing else of it is seen inside.

A virtual environment is seen with the Python that it was made from, so its packages can be imported.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from streamrl.errors import ConfigError

SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
_CACHE: Final = "/etc/ld.so.cache"
_ASK: Final = """
import json, site, sys
prefixes = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
print(json.dumps([sorted(prefixes), site.getsitepackages()]))
"""
_ASK_TIMEOUT_S: Final = 60.0


class Interpreter(msgspec.Struct, frozen=True):
    """path: the file that is run. name: what it takes itself for (`argv[0]`), by which it finds its environment.
    visible: files and folders that it can read. links: symbolic links beside them, with what they point to. hidden:
    folders in the visible ones that are shown empty."""

    path: str
    name: str
    visible: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]


def read_interpreter(python: str | None) -> Interpreter:
    """Ask that Python for its folders; None takes the one that this one was made from, with its standard library alone.

    Raises ConfigError for one that does not run, or that lies in a folder that would open too much."""
    given = python if python is not None else getattr(sys, "_base_executable", None) or sys.executable
    name = os.path.abspath(os.path.expanduser(given))
    try:
        done = subprocess.run([name, "-I", "-S", "-c", _ASK], capture_output=True, check=True, timeout=_ASK_TIMEOUT_S)
        prefixes, packages = msgspec.json.decode(done.stdout, type=tuple[list[str], list[str]])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        raise ConfigError(f"sandbox.python = {given!r} is no Python that runs: {error}") from error
    hops = _hops(name)
    visible = _least([*_environment(name), *prefixes])
    for one in visible:
        if one == "/" or Path(one) in (Path.home(), *Path.home().parents):
            what = "a sandbox that sees it would see files of yours"
            raise ConfigError(f"sandbox.python = {given!r} has its files in {one!r}: {what}; name another Python")
    # Packages of the base Python are nobody's choice, and what they run at each start takes time.
    hidden = [os.path.realpath(one) for one in packages if python is None and os.path.isdir(one)]
    return _with_system(hops, visible, hidden)


def _environment(name: str) -> list[str]:
    """The virtual environment that it belongs to, if any. (-S does not tell.)"""
    folder = Path(name).parent.parent
    return [str(folder)] if (folder / "pyvenv.cfg").exists() else []


def _hops(name: str) -> list[str]:
    """The file, where the link on it points to, and so on, each with its folder's own links resolved."""
    hops = [name]
    while os.path.islink(hops[-1]):
        folder = os.path.dirname(hops[-1])
        hops.append(os.path.normpath(os.path.join(folder, os.readlink(hops[-1]))))
    return [*hops, os.path.realpath(name)]


def _least(folders: Iterable[str]) -> list[str]:
    """Those that no other one of them holds."""
    found = sorted({os.path.normpath(one) for one in folders} | {os.path.realpath(one) for one in folders})
    return [one for one in found if not any(one != other and _holds(other, one) for other in found)]


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _with_system(hops: list[str], visible: Iterable[str], hidden: Iterable[str]) -> Interpreter:
    system = [one for one in SYSTEM if os.path.isdir(one) and not os.path.islink(one)]
    own = [one for one in visible if not any(_holds(other, one) for other in SYSTEM)]
    # A link that leads to it stands alone: its folder may hold anything.
    apart = [one for one in hops if os.path.islink(one) and not any(_holds(other, one) for other in (*SYSTEM, *own))]
    links = [(one, os.readlink(one)) for one in (*SYSTEM, *apart) if os.path.islink(one)]
    cache = [_CACHE] if os.path.exists(_CACHE) else []
    return Interpreter(hops[-1], hops[0], (*system, *own, *cache), tuple(links), tuple(hidden))
