"""Rows of an Arrow batch as Python has them, also where Python has no such value. Pure.

Arrow knows times to the nanosecond, zones and years that Python does not, text that was never checked to be UTF-8, and
text that is said to be JSON, as `datasets` keeps what no Arrow type holds.
"""

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

_NO_PYTHON_VALUE = (ValueError, OverflowError, LookupError)
"""What Arrow raises for such a value: also what `zoneinfo` and `pytz` raise for a zone that they do not know."""


def arrow_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch, column by name. A map is a record; of a key that it has twice the last value counts. JSON is
    what it says, a text that is none stays one.

    A time that Python cannot hold is Arrow's text for it; a text that is not UTF-8 has half surrogates in the place of
    its bad bytes. Of a list or a record that has one of these inside, None is left."""
    rows = _rows(batch)
    for name, kind in zip(batch.schema.names, batch.schema.types, strict=True):
        if read := _json_within(kind):
            for row in rows:
                row[name] = read(row[name])
    return rows


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="lossy")
        return rows
    except _NO_PYTHON_VALUE:
        columns = {name: _values(column) for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _json_within(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """What reads the JSON in a value of that type; None where it can have none."""
    if getattr(kind, "extension_name", "") == "arrow.json":
        return _read_json
    if pa.types.is_struct(kind):
        fields = [(kind.field(place).name, _json_within(kind.field(place).type)) for place in range(kind.num_fields)]
        readers = {name: read for name, read in fields if read}
        return _each_named(readers) if readers else None
    if pa.types.is_map(kind):
        item = _json_within(kind.item_type)
        return item and _each_value(item)
    if hasattr(kind, "value_type") and not pa.types.is_dictionary(kind):
        element = _json_within(kind.value_type)
        return element and _each_element(element)
    return None


def _read_json(value: str | None) -> Any:
    try:
        return value if value is None else json.loads(value)
    except ValueError:
        return value


def _each_named(readers: dict[str, Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def read(record: dict[str, Any] | None) -> Any:
        return record and {name: readers[name](one) if name in readers else one for name, one in record.items()}

    return read


def _each_value(item: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda record: record and {name: item(one) for name, one in record.items()}


def _each_element(element: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: values and [element(one) for one in values]


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist(maps_as_pydicts="lossy")
        return values
    except _NO_PYTHON_VALUE:
        return [_value(scalar) for scalar in column]


def _value(scalar: Any) -> Any:
    try:
        return scalar.as_py(maps_as_pydicts="lossy")
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes().decode("utf-8", "surrogateescape") if _is_text(scalar) else None
    except _NO_PYTHON_VALUE:
        return _written(scalar)


def _is_text(scalar: Any) -> bool:
    return bool(pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type))


def _written(scalar: Any) -> str | None:
    """A time as Arrow writes it; one of a zone that nobody knows without it."""
    kind = scalar.type
    if pa.types.is_timestamp(kind):
        scalar = scalar.cast(pa.timestamp(kind.unit))
    elif pa.types.is_duration(kind):
        return f"{scalar.cast(pa.int64()).as_py()} {kind.unit}"
    elif not pa.types.is_temporal(kind):
        return None
    return str(scalar.cast(pa.string()).as_py())
