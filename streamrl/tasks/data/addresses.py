"""From an address to the files that hold its rows, in a fixed order.

An address is a file, a glob, a folder, a folder that `datasets` saved, or `hf:OWNER/NAME[/CONFIG]`; `#SPLIT` behind it
names a split. Reads no rows.
"""

import glob
from pathlib import Path
from typing import NamedTuple

from streamrl.config.data_names import COMPRESSIONS, FORMATS, HUB, file_format
from streamrl.errors import ConfigError
from streamrl.models.folders import read_json

SPLITS = {"train": ("train",), "eval": ("test", "validation", "valid", "val", "dev", "eval")}
"""Names of the split that is meant where an address names none, the first that is there."""


class DataFile(NamedTuple):
    """One file of rows. format: a value of FORMATS."""

    path: Path
    format: str


class Hub(NamedTuple):
    """A data set of the hub, as `datasets.load_dataset` knows it. split: "" for the one that is meant."""

    name: str
    config: str | None
    split: str


def find(address: str, use: str) -> list[DataFile] | Hub:
    """What an address means. use: "train" or "eval", which decides the split where it names none.

    Raises ConfigError for an address with nothing behind it."""
    place, _, split = address.partition("#")
    if place.startswith(HUB):
        return _hub(address, place.removeprefix(HUB), split)
    path = Path(place).expanduser()
    if path.is_dir():
        return _folder(address, path, split, use)
    paths = [path] if path.is_file() else [Path(found) for found in sorted(glob.glob(str(path), recursive=True))]
    files = [one for one in paths if one.is_file()]
    if not files:
        near = _near(path)
        raise ConfigError(f"data {address!r}: there is no such file, folder or glob{near}; give a path that is there")
    return [_data_file(address, one) for one in files]


def _hub(address: str, name: str, split: str) -> Hub:
    parts = name.strip("/").split("/")
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise ConfigError(f"data {address!r} names no data set; write hf:OWNER/NAME or hf:OWNER/NAME/CONFIG#SPLIT")
    return Hub("/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split)


def _data_file(address: str, path: Path) -> DataFile:
    found = file_format(path.name)
    if found is None:
        raise ConfigError(
            f"data {address!r}: {path.name} is none of {', '.join(FORMATS)} (also {', '.join(COMPRESSIONS)}); "
            "rename it, or narrow the glob"
        )
    return DataFile(path, found)


def _folder(address: str, path: Path, split: str, use: str) -> list[DataFile]:
    """The files of a folder: of `datasets`' own kind by what it says, of any other by their names."""
    if (path / "dataset_dict.json").is_file():
        names = read_json(path / "dataset_dict.json").get("splits")
        found = [str(name) for name in names] if isinstance(names, list) else []
        return _saved(address, path / _choose(address, found, split, use))
    if (path / "state.json").is_file():
        return _saved(address, path)
    files = [
        one for one in sorted(path.rglob("*")) if one.is_file() and file_format(one.name) and not _hidden(one, path)
    ]
    if not files:
        raise ConfigError(f"data {address!r}: the folder has no file of {', '.join(FORMATS)}")
    by_split = _by_split(files, path)
    if by_split or split:
        files = by_split.get(_choose(address, list(by_split), split, use), [])
    return [_data_file(address, one) for one in files]


def _saved(address: str, path: Path) -> list[DataFile]:
    listed = read_json(path / "state.json").get("_data_files")
    names = [one.get("filename") for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    files = [path / str(name) for name in names]
    missing = [one.name for one in files if not one.is_file()]
    if missing or not files:
        what = f"{missing[0]} is missing" if missing else "its state.json names no files"
        raise ConfigError(f"data {address!r}: {path} is no whole data set of `datasets`: {what}; save it again")
    return [DataFile(one, "arrow") for one in files]


def _by_split(files: list[Path], folder: Path) -> dict[str, list[Path]]:
    """Files by the split that their names, or their folders' names, begin with; {} where one begins with none."""
    known = [name for names in SPLITS.values() for name in names]
    found: dict[str, list[Path]] = {}
    for file in files:
        parts = file.relative_to(folder).parts
        words = [part.partition("-")[0].partition(".")[0].partition("_")[0] for part in reversed(parts)]
        name = next((word for word in words if word in known), None)
        if name is None:
            return {}
        found.setdefault(name, []).append(file)
    return found


def _choose(address: str, there: list[str], split: str, use: str) -> str:
    wanted = (split,) if split else SPLITS[use]
    name = next((name for name in wanted if name in there), None)
    if name is None and not split and len(there) == 1 and use == "train":
        name = there[0]
    if name is None:
        raise ConfigError(
            f"data {address!r} has no split {wanted[0]!r}; it has {', '.join(there) or 'none'}: write "
            f"{address.partition('#')[0]}#SPLIT"
        )
    return name


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)


def _near(path: Path) -> str:
    """What lies where a path that is not there points, so that a slip of the pen is seen."""
    folder = path.parent
    if not folder.is_dir():
        return f" ({folder} is no folder)"
    names = sorted(one.name for one in folder.iterdir() if file_format(one.name))
    return f" ({folder} has {', '.join(names[:5])}{', ...' if len(names) > 5 else ''})" if names else ""
