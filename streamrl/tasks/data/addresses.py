"""From an address to the files that hold its rows, in a fixed order.

An address is a file, a glob, a folder, a folder that `datasets` saved, or `hf:OWNER/NAME[/CONFIG]`; `#SPLIT` behind it
names a split. Reads no rows.
"""

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from streamrl.config.data_names import COMPRESSIONS, FORMATS, HUB, cut_split, file_format
from streamrl.errors import ConfigError
from streamrl.models.folders import read_json

SPLITS = {"train": ("train",), "eval": ("test", "validation", "valid", "val", "dev", "eval")}
"""Names of the split that is meant where an address names none, the first that is there."""
ALSO_CALLED = {"training": "train", "testing": "test", "evaluation": "eval"}
"""What else a file of a split is called, as on the hub."""
DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json")
"""Files beside data that hold no rows."""
_BETWEEN_WORDS = re.compile(r"[-._= 0-9]+")


class DataFile(NamedTuple):
    """One file of rows. format: a value of FORMATS. partition: columns and values that its folders' names say."""

    path: Path
    format: str
    partition: tuple[tuple[str, str], ...] = ()


class Hub(NamedTuple):
    """A data set of the hub, as `datasets.load_dataset` knows it. split: "" for the one that is meant."""

    name: str
    config: str | None
    split: str


def find(address: str, use: str) -> list[DataFile] | Hub:
    """What an address means. use: "train" or "eval", which decides the split where it names none.

    Raises ConfigError for an address with nothing behind it."""
    place, split = cut_split(address)
    if place.startswith(HUB):
        return _hub(address, place.removeprefix(HUB), split)
    path = Path(place).expanduser()
    if path.is_dir():
        return _folder(address, path, split, use)
    paths = [path] if path.is_file() else _each_once(map(Path, glob.glob(str(path), recursive=True)))
    files = [one for one in paths if one.is_file()]
    if not files:
        near = _near(path)
        raise ConfigError(f"data {address!r}: there is no such file, folder or glob{near}; give a path that is there")
    if split:
        raise ConfigError(
            f"data {address!r}: a file or a glob has no splits, and #{split} names one; leave it out, or give the "
            "folder of the files"
        )
    root = path if path.is_file() else _fixed(path)
    return [_data_file(address, one, root) for one in files]


def _fixed(pattern: Path) -> Path:
    """The folder up to which a glob is no pattern."""
    parts = list(pattern.parts)
    return Path(*parts[: next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts))])


def _each_once(paths: Iterable[Path]) -> list[Path]:
    """In the order of their names. What links lead to more than once is there once, under its shortest path."""
    found: dict[Path, Path] = {}
    for path in sorted(paths, key=lambda one: (len(one.parts), one)):
        found.setdefault(Path(os.path.realpath(path)), path)
    return sorted(found.values())


def _hub(address: str, name: str, split: str) -> Hub:
    parts = name.strip("/").split("/")
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise ConfigError(f"data {address!r} names no data set; write hf:OWNER/NAME or hf:OWNER/NAME/CONFIG#SPLIT")
    return Hub("/".join(parts[:2]), parts[2] if len(parts) == 3 else None, split)


def _data_file(address: str, path: Path, root: Path) -> DataFile:
    """root: folders below it whose name is `column=value` give their files that column, as Hive's do."""
    found = file_format(path.name)
    if found is None:
        raise ConfigError(
            f"data {address!r}: {path.name} is none of {', '.join(FORMATS)} (also {', '.join(COMPRESSIONS)}); "
            "save it as one of them, rename it, or narrow the glob"
        )
    folders = [part.partition("=") for part in path.relative_to(root).parts[:-1]]
    return DataFile(path, found, tuple((column, unquote(value)) for column, mark, value in folders if column and mark))


def _folder(address: str, path: Path, split: str, use: str) -> list[DataFile]:
    """The files of a folder: of `datasets`' own kind by what it says, of any other by their names."""
    if (path / "dataset_dict.json").is_file():
        names = read_json(path / "dataset_dict.json").get("splits")
        found = [str(name) for name in names] if isinstance(names, list) else []
        return _saved(address, path / _choose(address, found, split, use))
    if (path / "state.json").is_file():
        return _saved(address, path)
    files = [
        one
        for one in _each_once(path.rglob("*"))
        if one.is_file() and file_format(one.name) and one.name not in DESCRIPTIONS and not _hidden(one, path)
    ]
    if not files:
        raise ConfigError(f"data {address!r}: the folder has no file of {', '.join(FORMATS)}")
    by_split = _by_split(files, path)
    if by_split or split:
        files = by_split.get(_choose(address, list(by_split), split, use), [])
    return [_data_file(address, one, path) for one in files]


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
    """Files by the split that a word of their names, or else of their folders' names, says; {} where none does.

    A file that says none is for training where no other is; beside files that say `train` it is left out, as on the
    hub."""
    found: dict[str, list[Path]] = {}
    nameless = []
    for file in files:
        split = _split_of(file.relative_to(folder))
        if split is None:
            nameless.append(file)
        else:
            found.setdefault(split, []).append(file)
    if found and nameless:
        found.setdefault("train", nameless)
    return found


def _split_of(path: Path) -> str | None:
    """`train` for `data/train-00000.parquet`, `gsm8k_train.jsonl`, `Training/a.csv`; None for `a.jsonl`."""
    known = [name for names in SPLITS.values() for name in names]
    for part in reversed(path.parts):
        words = (ALSO_CALLED.get(word, word) for word in _BETWEEN_WORDS.split(part.casefold()))
        split = next((word for word in words if word in known), None)
        if split is not None:
            return split
    return None


def _choose(address: str, there: list[str], split: str, use: str) -> str:
    wanted = (split,) if split else SPLITS[use]
    name = next((name for name in wanted if name in there), None)
    if name is None and not split and len(there) == 1 and use == "train":
        name = there[0]
    if name is None:
        raise ConfigError(
            f"data {address!r} has no split {wanted[0]!r}; it has {', '.join(there) or 'none'}: write "
            f"{cut_split(address)[0]}#SPLIT"
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
