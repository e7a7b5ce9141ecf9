"""Prepared prompts on disk: written once, one after the other, then read by number.

Guarantees that memory does not grow with the number of prompts: a prompt is read by two reads at known places. A folder
is there whole or not at all. Layout of a part: `NAME.prompts`, the prompts as msgpack; `NAME.places`, uint64
little-endian, where each begins and where the last ends. `meta.json` says how many bytes each has.
"""

import os
import struct
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec
import xxhash

from streamrl.errors import DataError
from streamrl.tasks.base import Prompt

TRAIN, HELD_OUT = "train", "held_out"
META = "meta.json"
_PLACE = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")


class BadRowNote(msgspec.Struct, frozen=True):
    """A row that was left out. source: its file or data set. row: its number there."""

    source: str
    row: int
    reason: str


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of prepared prompts.

    train: how many each address of `data.train` gave. held_out: how many each set of evaluation prompts has, in their
    order. longest_tokens: of any prompt. longest_text: bytes that a training prompt adds to a row. too_long: rows left
    out for their length. bad: the first of `num_bad` rows that could not be used. sizes: bytes of each file."""

    train: list[int]
    held_out: dict[str, int]
    longest_tokens: int
    longest_text: int
    too_long: int
    num_bad: int
    bad: list[BadRowNote]
    without_answer: int
    fingerprint: str
    sizes: dict[str, int]


class PromptWriter:
    """Writes one part, prompt by prompt."""

    def __init__(self, folder: Path, name: str) -> None:
        self.count = 0
        self._at = 0
        self._digest = xxhash.xxh3_64()
        self._encoder = msgspec.msgpack.Encoder()
        self._prompts: IO[bytes] = open(folder / f"{name}.prompts", "wb")  # noqa: SIM115 - closed by `close`
        self._places: IO[bytes] = open(folder / f"{name}.places", "wb")  # noqa: SIM115
        self._places.write(_PLACE.pack(0))

    def add(self, prompt: Prompt) -> None:
        record = self._encoder.encode(prompt)
        self._prompts.write(record)
        self._digest.update(record)
        self._at += len(record)
        self.count += 1
        self._places.write(_PLACE.pack(self._at))

    def close(self) -> str:
        """Make it durable; a digest of all prompts, in order."""
        for file in (self._prompts, self._places):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        return self._digest.hexdigest()

    def __enter__(self) -> "PromptWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._prompts.close()
        self._places.close()


class PromptReader:
    """Reads one part by number. It keeps the files open, so they may be removed meanwhile."""

    def __init__(self, folder: Path, name: str) -> None:
        self._decoder = msgspec.msgpack.Decoder(Prompt)
        self._path = folder / f"{name}.prompts"
        self._prompts = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._places = os.open(folder / f"{name}.places", os.O_RDONLY | os.O_CLOEXEC)
        self.count = os.fstat(self._places).st_size // _PLACE.size - 1
        for descriptor in (self._prompts, self._places):
            weakref.finalize(self, os.close, descriptor)

    def at(self, index: int) -> Prompt:
        """Raises IndexError outside of `range(count)`, DataError for a damaged file."""
        if not 0 <= index < self.count:
            raise IndexError(f"there is no prompt {index}: there are {self.count}")
        begin, end = _PAIR.unpack(os.pread(self._places, _PAIR.size, index * _PLACE.size))
        try:
            return self._decoder.decode(os.pread(self._prompts, end - begin, begin))
        except msgspec.DecodeError as error:
            raise DataError(f"{self._path} is damaged at prompt {index}: {error}; remove its folder") from error


def write_meta(folder: Path, meta: Meta) -> None:
    path = folder / META
    with open(path, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(meta)))
        file.flush()
        os.fsync(file.fileno())


def read_meta(folder: Path) -> Meta | None:
    """What a folder says of itself; None where there is none, or not all of it."""
    try:
        meta = msgspec.json.decode((folder / META).read_bytes(), type=Meta)
        whole = all((folder / name).stat().st_size == size for name, size in meta.sizes.items())
    except (OSError, msgspec.DecodeError):
        return None
    return meta if whole else None
