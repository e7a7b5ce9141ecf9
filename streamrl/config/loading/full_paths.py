"""A configuration with each file and folder by its full name: the parts of a run work in another folder than the one in
which the user called `streamrl up`, and a run goes on from any.

Guarantees that an address of a store, a data set of the hub and a name that is no path stay as they are, and that links
are not followed. Looks at no file.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from streamrl.config.data_names import full_address, names_data
from streamrl.config.schema.run import Config
from streamrl.storage.address import has_scheme


def full_paths(config: Config) -> Config:
    """The same configuration; relative paths begin at the current folder, and `~` is the home."""
    for key, full in PATH_KEYS.items():
        config = _changed(config, key.split("."), full)
    return config


def _full_path(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _full_place(place: str) -> str:
    """Of a folder, or of a store by its address."""
    return place if has_scheme(place) else _full_path(place)


def _full_task(name: str) -> str:
    return full_address(name) if names_data(name) else name


PATH_KEYS: Final[Mapping[str, Callable[[str], str]]] = {
    "task.name": _full_task,
    "data.train": full_address,
    "data.eval": full_address,
    "data.cache": _full_path,
    "model.path": _full_path,
    "rollout.server.python": _full_path,
    "sandbox.python": _full_path,
    "reward.model.path": _full_path,
    "learner.critic.path": _full_path,
    "learner.algorithm.reference.path": _full_path,
    "checkpoint.folder": _full_place,
    "weights.folder": _full_place,
    "gateway.tls_cert": _full_path,
    "gateway.tls_key": _full_path,
}
"""The keys that name files and folders, but `runs`: who claims a run folder hands its full name on."""


def _changed(table: Any, names: list[str], full: Callable[[str], str]) -> Any:
    """The table with one value changed; names: the way to it."""
    value = getattr(table, names[0])
    return replace(table, **{names[0]: _changed(value, names[1:], full) if names[1:] else _each(value, full)})


def _each(value: Any, full: Callable[[str], str]) -> Any:
    """One text, several, several by name, or none."""
    if value is None:
        return None
    if isinstance(value, str):
        return full(value)
    return {name: full(one) for name, one in value.items()} if isinstance(value, dict) else tuple(map(full, value))
