"""Folders that are there whole or not at all, and that say which of them are ours.

A folder is filled under another name beside its place, synced, and renamed. A folder of somebody else is
never replaced: only one that carries our mark is. Knows nothing of models.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from streamrl.config.estimates.weight_files import Unreadable, refuse_adapters
from streamrl.errors import ConfigError

MARK = "streamrl.json"


def write_folder(folder: Path, mark: Mapping[str, object], fill: Callable[[Path], None]) -> None:
    """Put a folder made by `fill` at `folder`, with `mark` in it, replacing an earlier one of ours.

    Raises ConfigError when something that is not ours is in the way. A crash leaves the old folder, or the
    new one, or (between two renames) the old one under the name `.<name>.old`."""
    require_ours(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        fill(fresh)
        (fresh / MARK).write_text(json.dumps(mark) + "\n", encoding="utf-8")
        _sync_files(fresh)
        _swap(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def read_mark(folder: Path) -> dict[str, object] | None:
    """What our mark in `folder` says; None when the folder does not exist or is not ours."""
    return read_json(folder / MARK) or None


def read_json(path: Path) -> dict[str, object]:
    """The object in a JSON file; {} when there is no such file. ConfigError when it is something else."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def checked_folder(folder: Path) -> Path:
    """The folder. Raises ConfigError for one that is no Hugging Face model's, or that brings code or formats which may
    carry some."""
    if not folder.is_dir():
        raise ConfigError(f"model folder {folder} does not exist; give a local Hugging Face folder")
    try:
        refuse_adapters(folder)
    except Unreadable as error:
        raise ConfigError(str(error)) from error
    config = read_json(folder / "config.json")
    if not config:
        raise ConfigError(f"model folder {folder} has no config.json")
    if "auto_map" in config:
        raise ConfigError(
            f"the model in {folder} brings its own Python code, which streamrl does not run; where transformers knows "
            "its model_type by itself, take auto_map out of config.json"
        )
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"model folder {folder} has no .safetensors file; other weight formats are not read")
    return folder


def require_ours(folder: Path) -> None:
    """Raise ConfigError when something that is not ours is in the way of `folder`."""
    if not folder.exists() or read_mark(folder) is not None:
        return
    if folder.is_dir() and not any(folder.iterdir()):
        return
    raise ConfigError(f"{folder} exists and was not written by streamrl; give a folder that is not there yet")


def _swap(fresh: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    _sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync_files(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
