"""Small versions of weights with manifests, for tests of deltas, and what is done to them."""

import random
from collections.abc import Mapping, Sequence

import numpy as np
import xxhash

from streamrl.types import Version
from streamrl.weights.delta.delta import encode_delta
from streamrl.weights.manifest import ITEM_BYTES, TensorEntry, WeightManifest, combined_digest

RUN = "run-1"
ANY_SHARE = 1e9
"""Small versions are all header: with it they are not refused for that."""

Tensor = tuple[str, tuple[int, ...], np.ndarray]
"""dtype, shape, the elements' bits (uint16 or uint32, flat)."""


def bits(dtype: str, values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.asarray(values, dtype=np.uint16 if ITEM_BYTES[dtype] == 2 else np.uint32)


def flat(dtype: str, values: Sequence[int] | np.ndarray) -> Tensor:
    elements = bits(dtype, values)
    return dtype, (len(elements),), elements


def build_version(
    step: int, tensors: Mapping[str, Tensor], *, gap: int = 0, start: int = 0, run_id: str = RUN, incarnation: int = 0
) -> tuple[WeightManifest, np.ndarray]:
    """A version with its bytes: tensors from byte `start` on, `gap` bytes of 0xEE behind each."""
    entries, pieces = [], [b"\xee" * start]
    offset = start
    for name, (dtype, shape, elements) in tensors.items():
        data = bits(dtype, elements).tobytes()
        digest = xxhash.xxh3_64_hexdigest(data)
        entries.append(TensorEntry(name, dtype, shape, offset, len(data), digest))
        pieces += [data, b"\xee" * gap]
        offset += len(data) + gap
    content = np.frombuffer(b"".join(pieces), np.uint8)
    manifest = WeightManifest(
        run_id=run_id,
        version=Version(incarnation, step),
        source="shm",
        location="",
        tensors=tuple(entries),
        total_bytes=offset,
        digest=combined_digest(entries),
    )
    return manifest, content


def joined(buffers: "list[bytes | bytearray | memoryview] | None") -> bytes:
    assert buffers is not None
    return b"".join(buffers)


def delta_of(old: tuple[WeightManifest, np.ndarray], new: tuple[WeightManifest, np.ndarray]) -> bytes:
    """The delta as one buffer, however large."""
    return joined(encode_delta(old[0], new[0], old[1], new[1], max_share=ANY_SHARE))


def holds(manifest: WeightManifest, content: np.ndarray) -> bool:
    """Whether every tensor has the digest of its manifest."""
    return all(
        xxhash.xxh3_64_hexdigest(content[entry.offset : entry.offset + entry.nbytes].tobytes()) == entry.digest
        for entry in manifest.tensors
    )


def pair(seed: int = 0) -> tuple[tuple[WeightManifest, np.ndarray], tuple[WeightManifest, np.ndarray]]:
    """Two versions with a tensor of each kind: unchanged, changed in each format, with several pieces, and in full."""
    generator = np.random.default_rng(seed)
    old: dict[str, Tensor] = {}
    for name, dtype, size in (("a", "bfloat16", 301), ("b", "float32", 200), ("c", "float16", 70_000)):
        old[name] = flat(dtype, generator.integers(0, 2**16, size))
    old |= {"same": flat("float32", np.arange(9)), "grows": flat("float16", np.arange(5))}
    new = {name: (dtype, shape, elements.copy()) for name, (dtype, shape, elements) in old.items()}
    for name, share in (("a", 0.1), ("b", 0.9), ("c", 0.002)):
        elements = new[name][2]
        moved = np.flatnonzero(generator.random(len(elements)) < share)
        elements[moved] += generator.integers(1, 2**12, len(moved)).astype(elements.dtype)
    new["grows"] = flat("float16", np.arange(11))
    return build_version(4, old, gap=6), build_version(5, new, gap=6)


def mutated(data: bytes, chance: random.Random, start: int = 0) -> bytes:
    """`data` with a few changes from byte `start` on: flipped, set, cut, doubled, exchanged or zeroed."""
    raw = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        if len(raw) <= start:
            break
        place = chance.randrange(start, min(len(raw), start + chance.choice([32, 400, 10**9])))
        length = chance.choice([1, 1, 2, 4, 8, 60])
        kind = chance.randrange(6)
        if kind == 0:
            raw[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            raw[place] = chance.choice([0, 1, 31, 32, 33, 127, 128, 255])
        elif kind == 2:
            del raw[place : place + length]
        elif kind == 3:
            raw[place:place] = raw[place : place + length]
        elif kind == 4:
            raw[place : place + length] = chance.randbytes(len(raw[place : place + length]))
        else:
            raw[place : place + length] = bytes([chance.choice([0, 255])]) * len(raw[place : place + length])
    return bytes(raw)
