"""A version as a safetensors file: what is sent loads as the version, and whatever else comes is found out."""

import json
import random
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load

from streamrl.errors import DataError
from streamrl.types import Version
from streamrl.weights.manifest import WeightManifest
from streamrl.weights.safetensors_form import LENGTH, MAX_HEADER_BYTES, IncomingVersion, header_of, in_order
from streamrl.weights.shm.shm import ShmPublisher, ShmSource

KEY = b"k" * 32
TENSORS = {
    "model.embed.weight": torch.arange(15, dtype=torch.float32).view(3, 5),
    "scale": torch.tensor(2.5, dtype=torch.bfloat16),
    "none": torch.zeros(0, 4),
    "half": torch.arange(7, dtype=torch.float16),
}


@pytest.fixture(scope="module")
def sent() -> Iterator[tuple[WeightManifest, bytes]]:
    """A version, and the file that is sent of it."""
    with ShmPublisher("safetensors-form", KEY) as publisher:
        manifest = publisher.publish(TENSORS.items(), Version(2, 7))
        with ShmSource("safetensors-form", KEY).open(manifest) as tensors:
            parts = [tensors[one.name].contiguous().view(-1).view(torch.uint8) for one in in_order(manifest)]
            yield manifest, header_of(manifest) + b"".join(part.numpy().tobytes() for part in parts)


def taken(data: bytes, sizes: Iterator[int]) -> IncomingVersion:
    incoming, start = IncomingVersion(), 0
    while start < len(data):
        size = next(sizes)
        incoming.add(data[start : start + size])
        start += size
    incoming.finish()
    return incoming


def whole() -> Iterator[int]:
    return iter([10**9])


def test_what_is_sent_loads_as_the_tensors_of_the_version(sent: tuple[WeightManifest, bytes]) -> None:
    manifest, data = sent
    loaded = load(data)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)
    assert len(header_of(manifest)) % 8 == 0


def test_it_is_the_version_however_it_comes(sent: tuple[WeightManifest, bytes]) -> None:
    manifest, data = sent
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for most in (1, 3, 50, len(data)):
        incoming = taken(data, iter(lambda: draw.randint(1, most), None))  # noqa: B023 - used at once
        assert (incoming.version, incoming.digest) == (manifest.version, manifest.digest)


def test_a_bit_that_is_another_one_is_found_wherever_it_is(sent: tuple[WeightManifest, bytes]) -> None:
    manifest, data = sent
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    start = len(header_of(manifest))
    for place in {*range(start, len(data)), *(draw.randrange(start) for _ in range(300))}:
        damaged = bytearray(data)
        damaged[place] ^= 1 << draw.randrange(8)
        try:
            incoming = taken(bytes(damaged), whole())
        except DataError:
            continue
        # Only what says nothing of the tensors may differ: a space, the file's format, the version's own number.
        assert place < start
        assert incoming.digest == manifest.digest


def test_a_file_that_ends_too_early_or_too_late_is_none(sent: tuple[WeightManifest, bytes]) -> None:
    _, data = sent
    for end in range(len(data)):
        with pytest.raises(DataError, match="ends before"):
            taken(data[:end], whole())
    with pytest.raises(DataError, match="1 bytes behind the last tensor of version"):
        taken(data + b"x", whole())


def framed(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return LENGTH.pack(len(text)) + text


GOOD = {"format": "pt", "version": "0.1", "digest": "0" * 16, "digests": "{}"}
TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
DIGESTED = {**GOOD, "digests": '{"w": "0"}'}


@pytest.mark.parametrize(
    "data",
    [
        LENGTH.pack(MAX_HEADER_BYTES + 1) + b"{}",
        framed(b"{"),
        framed(b"\xff"),
        framed([]),
        framed({}),
        framed({"__metadata__": {}}),
        framed({"__metadata__": {**GOOD, "version": "newest"}}),
        framed({"__metadata__": {**GOOD, "digests": "[]"}}),
        framed({"__metadata__": GOOD}),
        framed({"__metadata__": GOOD, "w": TENSOR}),
        framed({"__metadata__": DIGESTED, "w": {**TENSOR, "dtype": "I64"}}),
        framed({"__metadata__": DIGESTED, "w": {**TENSOR, "data_offsets": [4, 8]}}),
        framed({"__metadata__": DIGESTED, "w": {**TENSOR, "shape": [2]}}),
        framed({"__metadata__": DIGESTED, "w": {**TENSOR, "shape": [-1]}}),
        framed({"__metadata__": DIGESTED, "w": TENSOR}),
    ],
)
def test_what_is_no_version_is_refused(data: bytes) -> None:
    with pytest.raises(DataError):
        taken(data, whole())
