"""The names of data: which files hold rows, how they are compressed, and what the address of data looks like.

A check must know them without importing what reads rows.
"""

import re
from pathlib import Path, PurePath

HUB = "hf:"
"""What the address of a data set of the hub begins with."""

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonlines": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
"""Format of a file by the end of its name."""

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd", ".lz4": "lz4", ".xz": "xz"}
"""Compression of a file by the end of its name."""

_MODULE = re.compile(r"\.py(:|$)")
"""What somebody writes who means a class in a file, which is written `module:Class`."""


def file_format(name: str) -> str | None:
    """The format that a file's name says, through a compression's ending; None for another file."""
    path = PurePath(name)
    if compression(name) is not None:
        path = path.with_suffix("")
    return FORMATS.get(path.suffix.lower())


def compression(name: str) -> str | None:
    """How a file is packed by its name; None where it says nothing."""
    return COMPRESSIONS.get(PurePath(name).suffix.lower())


def cut_split(address: str) -> tuple[str, str]:
    """An address without its `#SPLIT`, and the split, "" for none. `a#1.jsonl` is the name of a file."""
    place, _, split = address.rpartition("#")
    return (place, split) if place and file_format(split) is None else (address, "")


def full_address(address: str) -> str:
    """The address from the root of the file system, where it is of files."""
    place, split = cut_split(address)
    mark = "#" if split else ""
    return address if place.startswith(HUB) else f"{Path(place).expanduser().absolute()}{mark}{split}"


def names_data(name: str) -> bool:
    """Whether a task's name is the address of data: no built-in task and no `module:Class` is written so."""
    address = cut_split(name)[0]
    if address.startswith(HUB) or file_format(address) is not None:
        return True
    return ("/" in address or "*" in address) and _MODULE.search(address) is None
