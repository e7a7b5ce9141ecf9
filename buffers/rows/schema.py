"""The Arrow schemas of what streamrl writes: completions, one row a rollout branch, and scores, joined by id; and
partials, pieces of rollouts that have not ended.

Guaranteed: no dictionary columns (a growing stream cannot carry them), no nulls in token columns, and a
version in the schema's metadata. A reader takes any minor version of its own major and refuses a newer major.
Nothing here knows of files.

Tokens: `token_ids`, `token_origin` and `rollout_logprobs` have one entry for each token of the row, prompt
included. `version_spans.start` counts tokens of the row too: the span's version sampled the sampled tokens
from there up to the next span's start. In partials all of this counts sampled tokens only, and `start` says how many
came before the piece. `turn`, where a rollout has several, says which of them it is a piece of.
"""

import re
from typing import Final

import pyarrow as pa

from streamrl.errors import DataError

VERSION: Final = "1.2"
_VERSION: Final = re.compile(r"([0-9]{1,6})\.[0-9]{1,6}")
VERSION_KEY: Final = b"streamrl.schema"
TABLE_KEY: Final = b"streamrl.table"
FINISH_REASONS: Final = ("stop", "length", "abort", "error")
"""Their places are the finish codes of the ledger: append only."""

_SAMPLING: Final = pa.struct(
    [
        pa.field("temperature", pa.float64(), nullable=False),
        pa.field("top_p", pa.float64(), nullable=False),
        pa.field("top_k", pa.int32(), nullable=False),
        pa.field("min_p", pa.float64(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
    ]
)
_SPAN: Final = pa.struct(
    [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("incarnation", pa.int32(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
    ]
)


def _ragged(value: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("item", value, nullable=False))


def _schema(table: str, required: dict[str, pa.DataType], optional: dict[str, pa.DataType]) -> pa.Schema:
    fields = [pa.field(name, kind, nullable=False) for name, kind in required.items()]
    fields += [pa.field(name, kind) for name, kind in optional.items()]
    return pa.schema(fields, metadata={VERSION_KEY: VERSION.encode(), TABLE_KEY: table.encode()})


COMPLETIONS: Final = _schema(
    "completions",
    {
        "rollout_id": pa.string(),
        "branch": pa.int32(),
        "group_id": pa.string(),
        "prompt_id": pa.string(),
        "stream": pa.string(),
        "data_pass": pa.int32(),
        "sample_index": pa.int32(),
        "attempt": pa.int32(),
        "token_ids": _ragged(pa.int32()),
        "token_origin": _ragged(pa.uint8()),
        "rollout_logprobs": _ragged(pa.float32()),
        "version_spans": _ragged(_SPAN),
        "finish_reason": pa.string(),
        "sampling": _SAMPLING,
        "turns": pa.int32(),
        "replica": pa.string(),
        "started_ns": pa.int64(),
        "finished_ns": pa.int64(),
        "payload": pa.string(),
    },
    {"routed_experts": pa.binary(), "routed_experts_shape": pa.list_(pa.int32())},
)

SCORES: Final = _schema(
    "scores",
    {
        "rollout_id": pa.string(),
        "branch": pa.int32(),
        "revision": pa.int32(),
        "status": pa.string(),
        "components": pa.map_(pa.string(), pa.float64()),
        "reason": pa.string(),
        "scorer": pa.string(),
        "scored_ns": pa.int64(),
    },
    {"reward": pa.float64(), "info": pa.string()},
)

PARTIALS: Final = _schema(
    "partials",
    {
        "rollout_id": pa.string(),
        "attempt": pa.int32(),
        "start": pa.int32(),
        "token_ids": _ragged(pa.int32()),
        "rollout_logprobs": _ragged(pa.float32()),
        "version_spans": _ragged(_SPAN),
    },
    {"turn": pa.string()},
)
_ROUTES: Final = [COMPLETIONS.field(name) for name in ("routed_experts", "routed_experts_shape")]
ROUTED_PARTIALS: Final = pa.schema([*PARTIALS, *_ROUTES], metadata=PARTIALS.metadata)
"""Where routes are recorded; other runs write none."""


def major(version: str) -> int:
    """The major number of a "major.minor" version string.

    Raises:
        DataError: it is not of that form.
    """
    found = _VERSION.fullmatch(version)
    if found is None:
        raise DataError(f"schema version {version!r} is not of the form 'major.minor'")
    return int(found[1])


_TABLES: Final = {"completions": COMPLETIONS, "scores": SCORES, "partials": PARTIALS}
_LATER: Final = ("info", "turn")
"""Columns that came with a later minor version: where one is missing, nothing is said in it."""


def check_readable(schema: pa.Schema, source: str) -> None:
    """Refuse a schema that this release cannot read. `source` names where it came from in the message.

    Raises:
        DataError: no version, a newer major or an older one, an unknown table, a name of a column that is no text,
            or a column that the table must have and that is missing or of another type.
    """
    version = _metadata(schema, VERSION_KEY)
    if not version:
        raise DataError(f"{source}: the Arrow schema carries no {VERSION_KEY.decode()}; streamrl did not write it")
    if major(version) != major(VERSION):
        raise DataError(
            f"{source}: schema version {version}, this release reads {major(VERSION)}.x; "
            "open the run with the release that wrote it"
        )
    ours = _TABLES.get(table_of(schema))
    if ours is None:
        raise DataError(f"{source}: the Arrow schema is of the table {table_of(schema)!r}, not {' or '.join(_TABLES)}")
    try:
        names = schema.names
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: table {table_of(schema)}: the name of a column is no text: {error}") from error
    for field in ours:
        if field.name in _LATER and field.name not in names:
            continue
        place = schema.get_field_index(field.name)
        if place < 0 or not schema.field(place).equals(field):
            raise DataError(f"{source}: table {table_of(schema)}: column {field.name!r} is missing or of another type")


def table_of(schema: pa.Schema) -> str:
    """`completions`, `scores` or `partials`: which of them a schema says it is, "" when it says nothing."""
    return _metadata(schema, TABLE_KEY)


def _metadata(schema: pa.Schema, key: bytes) -> str:
    return str((schema.metadata or {}).get(key, b"").decode(errors="replace"))
