"""The difference of two versions that follow each other: made by the publisher, applied by whoever has the older one.

Guarantees: lossless to the bit, -0.0 and the payload of NaN included; what `apply_delta` returns from has, tensor by
tensor, the digest that the newer manifest names. A tensor whose digest did not change takes no bytes and is not
looked at; one that is new, or has another format or shape, or changed too much, comes in full. It does not know files,
nor how the bytes travel, nor which delta is wanted (`streamrl.weights.delta.chain`). Manifests are verified by the
caller. It takes memory for a few MiB a thread and for the delta. For little-endian machines, and without torch.

Example:
    buffers = encode_delta(before, after, old_bytes, new_bytes)     # None: publish in full
    apply_delta(b"".join(buffers), before, after, target, base=old_bytes)
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from streamrl.errors import DataError
from streamrl.weights.delta.chain import version_before
from streamrl.weights.delta.format import (
    Coding,
    DeltaHeader,
    TensorChange,
    TensorRecord,
    alike,
    described,
    encode_header,
    open_delta,
)
from streamrl.weights.delta.kernels import CUT, FOREIGN, OUTSIDE, PIECE, Elements, apply, encode, encoded_words
from streamrl.weights.manifest import ITEM_BYTES, TensorEntry, WeightManifest

ENCODED_AT_ONCE: Final = 16 * PIECE
"""Elements: little enough that two threads end together, much enough that starting costs nothing."""
APPLIED_AT_ONCE: Final = 2 * PIECE
"""Elements: they are copied, changed and digested while they lie in a second-level cache."""
MAX_SHARE: Final = 0.5
"""Above this share of the full bytes a delta is not worth the base that it needs."""

_ELEMENTS: Final = {2: np.uint16, 4: np.uint32}
_WRONG: Final = {
    CUT: "its block ends too early",
    OUTSIDE: "its block names an element outside of it",
    FOREIGN: "its block is no list of changed elements",
}

Bytes = npt.NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview
Span = tuple[Elements, Elements]


def encode_delta(
    before: WeightManifest,
    after: WeightManifest,
    old_bytes: Any,
    new_bytes: Any,
    *,
    max_share: float = MAX_SHARE,
    threads: int = 2,
) -> list[Buffer] | None:
    """The delta that makes `after` out of `before`, as buffers to be sent one behind the other.

    old_bytes, new_bytes: all bytes of the versions, any contiguous buffers; blocks that come in full are views of
    new_bytes. Returns None when it would be more than `max_share` of the full bytes: publish in full. Raises DataError
    when the versions do not follow each other or the bytes are not as many as their manifests say.
    """
    if before.run_id != after.run_id or before.version != version_before(after.version):
        raise DataError(
            f"{described(before, after)}: a delta is against the version right before it, of the same run and "
            "incarnation: publish in full"
        )
    old, new = _content(old_bytes, before), _content(new_bytes, after)
    bases = {entry.name: entry for entry in before.tensors}
    plans = [_plan(bases.get(entry.name), entry, old, new) for entry in after.tensors]
    pool = ThreadPoolExecutor(threads, "weight-delta")
    try:
        parts = pool.map(_encoded, chain.from_iterable(spans for _, spans in plans))
        return _collected(before, after, plans, parts, new, max_share * after.total_bytes)
    finally:
        pool.shutdown(cancel_futures=True)


def apply_delta(
    delta: Any, before: WeightManifest, after: WeightManifest, target: Any, *, base: Any = None, threads: int = 2
) -> None:
    """Make `target` hold the tensors of `after`: out of `base`, all bytes of `before`, or in place if that is None.

    delta: the bytes of `encode_delta`, contiguous. target: writable, `after.total_bytes` long; in place it holds
    `before` at its beginning, and tensors that do not come in full must lie where they lay. Bytes between tensors stay
    as they are. Raises DataError; header, sizes and the blocks' digests are checked before the first byte is written,
    but **after any error the target is no version: throw it away**. `base` is never written.
    """
    what = described(before, after)
    changes = open_delta(memoryview(delta).toreadonly().cast("B"), before, after)
    goal = _sized(np.frombuffer(target, np.uint8), after.total_bytes, f"{what}: the target")
    source = _content(base, before) if base is not None else None
    if source is None:
        _check_in_place(changes, what)
    # The largest first: threads end together.
    changes.sort(key=lambda change: change.entry.nbytes, reverse=True)
    pool = ThreadPoolExecutor(threads, "weight-delta")
    try:
        for _ in pool.map(partial(_apply_tensor, what, source, goal), changes):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _content(data: Any, manifest: WeightManifest) -> Bytes:
    """All bytes of a version, read-only: the kernels are compiled for one kind of array."""
    content = np.frombuffer(memoryview(data).toreadonly(), np.uint8)
    return _sized(content, manifest.total_bytes, f"weights: version {manifest.version}")


def _sized(content: Bytes, wanted: int, what: str) -> Bytes:
    if len(content) != wanted:
        raise DataError(f"{what} has {len(content)} bytes, its manifest says {wanted}")
    return content


def _plan(base: TensorEntry | None, entry: TensorEntry, old: Bytes, new: Bytes) -> tuple[Coding, list[Span]]:
    """How a tensor would come best, and what must be compared for it."""
    if base is None or not alike(base, entry):
        return "full", []
    if base.digest == entry.digest:
        return "same", []
    olds, news = _elements(old, base), _elements(new, entry)
    starts = range(0, len(news), ENCODED_AT_ONCE)
    return "changed", [
        (olds[start : start + ENCODED_AT_ONCE], news[start : start + ENCODED_AT_ONCE]) for start in starts
    ]


def _elements(content: Bytes, entry: TensorEntry) -> Elements:
    return content[entry.offset : entry.offset + entry.nbytes].view(_ELEMENTS[ITEM_BYTES[entry.dtype]])


def _encoded(span: Span) -> memoryview:
    old, new = span
    out = np.empty(encoded_words(len(new), new.itemsize), np.uint32)
    return out[: encode(old, new, out)].copy().data.cast("B")


def _collected(
    before: WeightManifest,
    after: WeightManifest,
    plans: list[tuple[Coding, list[Span]]],
    parts: Iterator[memoryview],
    new: Bytes,
    limit: float,
) -> list[Buffer] | None:
    """Header and blocks, or None as soon as they are over the limit."""
    records: list[TensorRecord] = []
    blocks: list[Buffer] = []
    left = limit
    for entry, (coding, spans) in zip(after.tensors, plans, strict=True):
        own = islice(parts, len(spans))
        block = _gathered(own, min(entry.nbytes, left))
        if coding == "full" or (block is None and entry.nbytes <= left):
            coding, block = "full", [new[entry.offset : entry.offset + entry.nbytes].data]
            deque(own, maxlen=0)
        if block is None:
            return None
        records.append(_record(entry, coding, block))
        blocks += block
        left -= records[-1].nbytes
    header = encode_header(
        DeltaHeader(run_id=after.run_id, base=before.version, version=after.version, tensors=records)
    )
    return [header, *blocks] if len(header) <= left else None


def _gathered(parts: Iterator[memoryview], most: float) -> list[memoryview] | None:
    """The parts, or None as soon as they are more than `most` bytes."""
    gathered, size = [], 0
    for part in parts:
        gathered.append(part)
        size += len(part)
        if size > most:
            return None
    return gathered


def _record(entry: TensorEntry, coding: Coding, block: list[memoryview]) -> TensorRecord:
    hasher = xxhash.xxh3_64()
    for part in block:
        hasher.update(part)
    return TensorRecord(entry.name, coding, sum(map(len, block)), hasher.hexdigest(), entry.digest)


def _check_in_place(changes: list[TensorChange], what: str) -> None:
    for change in changes:
        if change.base is not None and change.base.offset != change.entry.offset:
            raise DataError(
                f"{what}: tensor {change.entry.name!r} moves from byte {change.base.offset} to {change.entry.offset}, "
                "which cannot be done in place: give the older version's bytes as `base`"
            )


def _apply_tensor(what: str, source: Bytes | None, goal: Bytes, change: TensorChange) -> None:
    """Copy, change and digest a tensor, a few pieces at a time. Raises DataError when it is not what it must be."""
    entry, stream, at = change.entry, np.frombuffer(change.block, np.uint8), 0
    out, hasher = goal[entry.offset : entry.offset + entry.nbytes], xxhash.xxh3_64()
    given = _given(change, source)
    step = APPLIED_AT_ONCE * ITEM_BYTES[entry.dtype]
    for start in range(0, entry.nbytes, step):
        part = out[start : start + step]
        if given is not None:
            part[:] = given[start : start + step]
        if change.coding == "changed":
            at = apply(stream, at, part.view(_ELEMENTS[ITEM_BYTES[entry.dtype]]))
            if at < 0:
                raise _unusable(what, entry, _WRONG[at])
        hasher.update(part.data)
    if change.coding == "changed" and at != len(stream):
        raise _unusable(what, entry, f"{len(stream) - at} bytes are left over in its block")
    if hasher.hexdigest() != entry.digest:
        raise _unusable(what, entry, f"it has digest {hasher.hexdigest()} now, the manifest says {entry.digest}")


def _given(change: TensorChange, source: Bytes | None) -> Bytes | None:
    """What a tensor is copied from before it is changed; None when it lies in the target already."""
    if change.base is None:
        return np.frombuffer(change.block, np.uint8)
    if source is None:
        return None
    return source[change.base.offset : change.base.offset + change.base.nbytes]


def _unusable(what: str, entry: TensorEntry, why: str) -> DataError:
    return DataError(
        f"{what}: tensor {entry.name!r}: {why}: the base or the delta is not the right one. The target is no version "
        "any more: throw it away and take the version in full"
    )
