"""Rows of files, one after the other: JSONL, JSON, CSV, Parquet and Arrow, compressed or not.

Guarantees that memory does not grow with a file: text is read by lines, JSON lists element by element, Parquet and
Arrow by batches. A row that cannot be read is given as a `Broken`, with the reason.
"""

import codecs
import csv
import io
import json
import lzma
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from streamrl.config.data_names import compression
from streamrl.errors import ConfigError
from streamrl.tasks.data.addresses import DataFile
from streamrl.tasks.data.arrow_values import arrow_rows
from streamrl.tasks.data.foreign import LONGEST_BEGINNING, refuse_foreign
from streamrl.tasks.data.json_forms import SeveralTables, rows_of

BATCH_ROWS = 256
CHUNK = 2**16
DELIMITERS = (",", "\t", ";", "|")
"""Of CSV files; the one that the header has most of."""
_QUOTED = re.compile(rb'"[^"]*"')
_SEPARATOR = re.compile(rb"(?:\xef\xbb\xbf)?sep=(.)\r?\n", re.IGNORECASE)
"""A first line by which spreadsheets say how a CSV file is cut."""
LONGEST_FIELD = 2**27
"""Characters of one field of a CSV file: the library's own limit is that of a spreadsheet."""


class Broken(NamedTuple):
    """In the place of a row that cannot be read."""

    reason: str


class RawRow(NamedTuple):
    """number: of the row in its file, from 1; of a JSONL file that of the line. filled: whether None stands for the
    keys that a record inside lacks, as in Arrow's files, whose records all have the same."""

    number: int
    value: dict[str, Any] | Broken
    filled: bool = False


def read_rows(file: DataFile) -> Iterator[RawRow]:
    """The rows of a file, in order. Raises ConfigError for a file that is none of its format at all."""
    try:
        if file.format in _BINARY:
            _refuse_pointer(file.path)
        partition = dict(file.partition)
        for row in _READERS[file.format](file.path):
            if partition and not isinstance(row.value, Broken):
                row = row._replace(value={**partition, **row.value})
            yield row
    except (OSError, EOFError, pa.ArrowException, csv.Error, lzma.LZMAError) as error:
        raise ConfigError(f"data {file.path}: it cannot be read as {file.format}: {error}") from error


def _jsonl(path: Path) -> Iterator[RawRow]:
    """A line, an object; or, as some files with this name are, one list of them, or each over several lines."""
    with _text(path) as file:
        first, more = _first_line(file)
    if first == "{" and more.startswith(('"', "}")):
        yield from _sequence(path)
        return
    yield from _list(path) if first.startswith("[") and not (more and _is_json(first)) else _lines(path)


def _lines(path: Path) -> Iterator[RawRow]:
    with _text(path) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield RawRow(number, _object(line))


def _object(line: bytes) -> dict[str, Any] | Broken:
    """A comma behind it, as between the elements of a list, is passed over."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return Broken(f"not UTF-8 at byte {error.start}; save the file as UTF-8")
    text = text.rstrip()
    try:
        return _columns(json.loads(text[:-1] if text.endswith("},") else text))
    except (ValueError, RecursionError) as error:
        return Broken(f"not JSON: {error}")


def _json(path: Path) -> Iterator[RawRow]:
    """A list of objects; as many files with this name are, a JSONL file; or one object that holds the rows."""
    with _text(path) as file:
        first, more = _first_line(file)
    if first.startswith("["):
        yield from _lines(path) if more and _is_json(first) else _list(path)
        return
    if more and isinstance(_object(first.encode()), dict):
        yield from _lines(path)
        return
    with _text(path) as file:
        whole = _object(file.read())
    if isinstance(whole, Broken) and "Extra data" in whole.reason:
        yield from _sequence(path)
        return
    yield from [RawRow(1, whole)] if isinstance(whole, Broken) else _held_by(whole, path)


def _sequence(path: Path) -> Iterator[RawRow]:
    """Objects one behind the other, over several lines each, as `jq` writes them; or one that holds the rows."""
    with _text(path) as file:
        values = [_columns(value) for _, value in zip(range(2), _elements(file, path), strict=False)]
    if len(values) == 1 and not isinstance(values[0], Broken):
        yield from _held_by(values[0], path)
        return
    yield from _list(path)


def _held_by(whole: dict[str, Any], path: Path) -> Iterator[RawRow]:
    """The rows that one object holds. Raises ConfigError for those of several splits."""
    try:
        rows = rows_of(whole)
    except SeveralTables as error:
        raise ConfigError(f"data {path}: {error}") from error
    yield from (RawRow(number, _columns(row)) for number, row in enumerate(rows, 1))


def _list(path: Path) -> Iterator[RawRow]:
    with _text(path) as file:
        values: Iterator[Any] = _elements(file, path)
        yield from (RawRow(number, _columns(value)) for number, value in enumerate(values, 1))


def _first_line(file: IO[bytes]) -> tuple[str, str]:
    """The first line that is not blank, and the next one; "" for none."""
    lines = (line.decode("utf-8-sig", "replace").strip() for line in file if line.strip())
    return next(lines, ""), next(lines, "")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _columns(value: Any) -> dict[str, Any] | Broken:
    return value if isinstance(value, dict) else Broken(f"a JSON {type(value).__name__}, not an object of columns")


def _elements(file: IO[bytes], path: Path) -> Iterator[Any]:
    """The elements of a JSON list, or values one behind the other, each as soon as it is whole.

    Raises ConfigError where they break off."""
    decoder, text = json.JSONDecoder(), ""
    chunks = iter(lambda: file.read(CHUNK), b"")
    pieces = codecs.iterdecode(chunks, "utf-8-sig")
    try:
        text = next(pieces).lstrip()
        listed = text.startswith("[")
        text = text.removeprefix("[")
        while True:
            text = text.lstrip().removeprefix(",").lstrip()
            if not listed and not text:
                return
            if listed and text.startswith("]"):
                _require_end(text[1:], pieces, path)
                return
            try:
                value, end = decoder.raw_decode(text)
            except RecursionError as error:
                raise ConfigError(f"data {path}: its JSON is nested too deep to be rows") from error
            except ValueError as error:
                more = _as_much(pieces, len(text))
                if not more:
                    raise ConfigError(f"data {path}: it is not JSON to its end: {error}") from error
                text += more
                continue
            yield value
            text = text[end:]
            while not text.strip() and (piece := next(pieces, None)) is not None:
                text = piece
    except UnicodeDecodeError as error:
        raise ConfigError(f"data {path}: it is not UTF-8: {error}") from error


def _as_much(pieces: Iterator[str], length: int) -> str:
    """At least so many characters more, if there are: a value that doubles is read a few times, and not for each
    piece."""
    found, count = [], 0
    while count <= length and (piece := next(pieces, None)) is not None:
        found.append(piece)
        count += len(piece)
    return "".join(found)


def _require_end(text: str, pieces: Iterator[str], path: Path) -> None:
    """Raises ConfigError where something follows a list that has ended: its rows would not be read."""
    while not text.strip():
        more = next(pieces, None)
        if more is None:
            return
        text = more
    raise ConfigError(
        f"data {path}: {text.strip()[:40]!r} is behind the end of its list; write one list, or a row on each line"
    )


def _csv(path: Path) -> Iterator[RawRow]:
    """Values are texts; a field that is empty, and one that a short row lacks, is None."""
    csv.field_size_limit(LONGEST_FIELD)
    with _text(path) as file:
        header = file.readline()
    said = _SEPARATOR.fullmatch(header)
    bare = _QUOTED.sub(b"", header)
    delimiter = said[1].decode("latin-1") if said else max(DELIMITERS, key=lambda one: bare.count(one.encode()))
    with _open(path) as file, io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="") as text:
        if said:
            text.readline()
        reader = csv.DictReader(text, delimiter=delimiter, strict=True)
        _require_names(reader.fieldnames or (), path)
        for number, row in enumerate(reader, 1):
            extra = row.pop(None, None)
            if extra is not None:
                yield RawRow(number, Broken(f"{len(extra)} fields more than the header names"))
            else:
                yield RawRow(number, {name: value or None for name, value in row.items()})


def _require_names(names: Sequence[str], path: Path) -> None:
    """Raise ConfigError for a table with two columns of one name: one would be lost, and nobody knows which."""
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise ConfigError(f"data {path}: it has two columns called {twice!r}; rename one, or leave it out")


def _parquet(path: Path) -> Iterator[RawRow]:
    with pa.parquet.ParquetFile(path) as file:
        _require_names(file.schema_arrow.names, path)
        yield from _batches(file.iter_batches(batch_size=BATCH_ROWS, use_threads=False))


def _arrow(path: Path) -> Iterator[RawRow]:
    """A file or a stream of Arrow's own format; `datasets` writes streams."""
    with pa.memory_map(str(path)) as source:
        try:
            reader: Any = pa.ipc.open_file(source)
            batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            reader = pa.ipc.open_stream(source)
            batches = iter(reader)
        _require_names(reader.schema.names, path)
        yield from _batches(batches)


def _batches(batches: Iterator[pa.RecordBatch]) -> Iterator[RawRow]:
    number = 0
    for batch in batches:
        for start in range(0, batch.num_rows, BATCH_ROWS):
            for row in arrow_rows(batch.slice(start, BATCH_ROWS)):
                number += 1
                yield RawRow(number, row, filled=True)


def _text(path: Path) -> IO[bytes]:
    """`_open` for a file of text. Raises ConfigError for one that is something else."""
    stream = _open(path)
    refuse_foreign(str(path), stream.peek(LONGEST_BEGINNING))
    return stream


def _open(path: Path) -> io.BufferedReader:
    """The bytes of a file, as they were before a compression that its name says; but for xz by Arrow."""
    packed = compression(path.name)
    if packed == "xz":
        return io.BufferedReader(lzma.LZMAFile(path), CHUNK)
    return io.BufferedReader(pa.input_stream(str(path), compression=packed), CHUNK)


def _refuse_pointer(path: Path) -> None:
    with open(path, "rb") as file:
        head = file.read(LONGEST_BEGINNING)
    if head.startswith((b"version ", b"<")):
        refuse_foreign(str(path), head)


_BINARY = ("parquet", "arrow")
_READERS = {"jsonl": _jsonl, "json": _json, "csv": _csv, "parquet": _parquet, "arrow": _arrow}
