"""What a delta of two versions says about itself, and whether it can be one between the two versions at hand.

    magic (8 bytes) | bytes of the header (8) | XXH3-64 of the header (8) | header | the block of each tensor, in order

Numbers are little-endian, the header is msgpack, tensors come in the order of the newer version's manifest. Guarantees
of `open_delta`: what it returns has run, versions, tensors, sizes and digests as both manifests say, and every block
its own digest; nothing is allocated by a number that the bytes claim. It does not look into blocks
(`streamrl.weights.delta.kernels`), and trusts the manifests: they were verified.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
import xxhash

from streamrl.errors import DataError
from streamrl.types import Version
from streamrl.weights.manifest import TensorEntry, WeightManifest

MAGIC: Final = b"SRLDLT\x01\n"
"""The byte before the newline is the format's version; a reader refuses any other."""
_PRELUDE: Final = struct.Struct("<8sQQ")

Coding = Literal["same", "changed", "full"]


class TensorRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How one tensor of the newer version comes.

    coding: `same` without a block; `changed` with its changed elements as block; `full` with all its bytes as block.
    nbytes and digest (XXH3-64, 16 hex digits) are of the block; result is the digest of the tensor that must come out.
    """

    name: str
    coding: Coding
    nbytes: Annotated[int, msgspec.Meta(ge=0)]
    digest: str
    result: str


class DeltaHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The delta of `version` against `base`, of one run."""

    run_id: str
    base: Version
    version: Version
    tensors: list[TensorRecord]


@dataclass(frozen=True, slots=True)
class TensorChange:
    """One tensor of the newer version: what it is there, what it was (None where it comes in full), and its block."""

    entry: TensorEntry
    base: TensorEntry | None
    coding: Coding
    block: memoryview


def described(before: WeightManifest, after: WeightManifest) -> str:
    """What a message calls the delta of two versions."""
    return f"weight delta {before.version} -> {after.version}"


def alike(base: TensorEntry | None, entry: TensorEntry) -> bool:
    """Whether the tensor was there before in the same form, so that its elements can be compared."""
    return base is not None and (base.dtype, base.shape) == (entry.dtype, entry.shape)


def encode_header(header: DeltaHeader) -> bytes:
    """All that comes before the blocks."""
    body = msgspec.msgpack.encode(header)
    return _PRELUDE.pack(MAGIC, len(body), xxhash.xxh3_64_intdigest(body)) + body


def read_header(data: memoryview) -> tuple[DeltaHeader, int]:
    """The header of a delta and where the first block begins. Raises DataError when the bytes are anything else."""
    what = f"weight delta of {len(data)} bytes"
    if len(data) < _PRELUDE.size:
        raise DataError(f"{what}: it is cut off in its first {_PRELUDE.size} bytes; take the version in full")
    magic, size, digest = _PRELUDE.unpack_from(data)
    if magic != MAGIC:
        raise DataError(f"{what}: it begins with {magic!r}, this release reads {MAGIC!r}; take the version in full")
    body = data[_PRELUDE.size : _PRELUDE.size + size]
    if len(body) != size or xxhash.xxh3_64_intdigest(body) != digest:
        raise DataError(f"{what}: its header of {size} bytes is cut off or damaged; take the version in full")
    try:
        return msgspec.msgpack.decode(body, type=DeltaHeader), _PRELUDE.size + size
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DataError(f"{what}: its header is none: {error}") from error


def open_delta(data: memoryview, before: WeightManifest, after: WeightManifest) -> list[TensorChange]:
    """The tensors of `after` in its order, each with how it comes. Raises DataError unless all of it fits."""
    header, at = read_header(data)
    what = described(before, after)
    if (header.run_id, header.base, header.version) != (after.run_id, before.version, after.version):
        raise DataError(
            f"{what} of run {after.run_id!r}: these bytes are that of {header.base} -> {header.version} "
            f"of run {header.run_id!r}"
        )
    _check_names(header.tensors, after.tensors, what)
    end = at + sum(record.nbytes for record in header.tensors)
    if end != len(data):
        raise DataError(f"{what}: {len(data)} bytes are there, its header says {end}: it was cut off or extended")
    bases = {entry.name: entry for entry in before.tensors}
    changes = []
    for record, entry in zip(header.tensors, after.tensors, strict=True):
        block = data[at : at + record.nbytes]
        changes.append(_change(record, entry, bases.get(entry.name), block, what))
        at += record.nbytes
    return changes


def _check_names(records: Sequence[TensorRecord], entries: Sequence[TensorEntry], what: str) -> None:
    if len(records) != len(entries):
        raise DataError(f"{what}: it is of {len(records)} tensors, the manifest of {len(entries)}")
    for record, entry in zip(records, entries, strict=True):
        if (record.name, record.result) != (entry.name, entry.digest):
            raise DataError(
                f"{what}: tensor {entry.name!r} has digest {entry.digest} in the manifest, and there is "
                f"{record.name!r} with {record.result} in its place: they are not of the same version"
            )


def _change(
    record: TensorRecord, entry: TensorEntry, base: TensorEntry | None, block: memoryview, what: str
) -> TensorChange:
    tensor = f"{what}: tensor {entry.name!r}"
    if record.coding != "full" and not alike(base, entry):
        raise DataError(f"{tensor} comes as {record.coding}, and the older version has none of its format and shape")
    wanted = {"same": 0, "full": entry.nbytes}.get(record.coding, record.nbytes)
    if record.nbytes != wanted:
        raise DataError(f"{tensor} comes as {record.coding} with {record.nbytes} bytes, not {wanted}")
    found = xxhash.xxh3_64_hexdigest(block)
    if found != record.digest:
        raise DataError(f"{tensor}: its block has digest {found}, the header says {record.digest}: it was damaged")
    return TensorChange(entry, None if record.coding == "full" else base, record.coding, block)
