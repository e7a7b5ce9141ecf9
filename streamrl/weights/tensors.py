"""Named torch tensors as plain bytes: order, finiteness, digests.

Guarantees: a digest depends on the numbers, their format and shape, and not on strides or device. A
non-finite number is found in one pass that allocates nothing of the tensor's size. It does not know where the
bytes go.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import torch
import xxhash

from streamrl.errors import DataError, NonFiniteError
from streamrl.weights.manifest import ITEM_BYTES, TensorEntry, combined_digest, entry_bytes

CHUNK_BYTES = 512 * 1024
"""Fits a second-level cache: a chunk is checked, digested and copied while it is there."""

_BITS: Final = {
    torch.float32: (torch.int32, np.uint32, 0x7F800000),
    torch.bfloat16: (torch.int16, np.uint16, 0x7F80),
    torch.float16: (torch.int16, np.uint16, 0x7C00),
}
"""How a format's bits are seen as signed and as unsigned numbers, and those of its infinity."""

NamedTensors = Iterable[tuple[str, torch.Tensor]]


def snapshot(tensors: NamedTensors) -> list[tuple[str, torch.Tensor]]:
    """Copies on the CPU, so that training may go on while they are published. Tensors of equal storage stay
    apart."""
    return [(name, tensor.detach().to("cpu", copy=True).contiguous()) for name, tensor in tensors]


def weights_digest(tensors: NamedTensors) -> str:
    """The digest that a manifest of these weights carries: 16 hex digits, whatever their order."""
    entries = []
    for name, tensor in tensors:
        hasher = xxhash.xxh3_64()
        for chunk in byte_chunks(tensor):
            hasher.update(as_bytes(chunk))
        entries.append(described(name, tensor, 0, hasher.hexdigest()))
    return combined_digest(entries)


def described(name: str, tensor: torch.Tensor, offset: int, digest: str = "") -> TensorEntry:
    """The manifest entry of a tensor. Raises DataError for a format that weights cannot have."""
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if dtype not in ITEM_BYTES:
        raise DataError(f"tensor {name!r} is {dtype}; weights are {', '.join(ITEM_BYTES)}: leave it out or cast it")
    return TensorEntry(name, dtype, shape, offset, entry_bytes(dtype, shape), digest)


def byte_chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor's elements in order, as flat CPU pieces of at most `CHUNK_BYTES`; views where possible."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    if flat.nbytes <= CHUNK_BYTES:
        return iter((flat,) if flat.numel() else ())
    return iter(flat.split(CHUNK_BYTES // flat.element_size()))


def as_bytes(chunk: torch.Tensor) -> memoryview:
    """The memory of a flat contiguous CPU tensor."""
    return memoryview(chunk.view(torch.uint8).numpy())


def check_finite(name: str, chunk: torch.Tensor) -> None:
    """Raise NonFiniteError, naming the tensor, when a flat non-empty chunk holds NaN or infinity."""
    if not _all_finite(chunk):
        count = int((~torch.isfinite(chunk)).sum())
        raise NonFiniteError(f"tensor {name!r} holds at least {count} NaN or infinite numbers: it is not published")


def _all_finite(chunk: torch.Tensor) -> bool:
    """By the order of the bits: those of NaN and infinity are the largest of either sign, as signed numbers for the
    positive half and as unsigned ones for the negative. Two maxima of integers, at the speed of the cache in every
    format."""
    signed, unsigned, infinity = _BITS[chunk.dtype]
    bits = chunk.view(signed).numpy()
    sign = 1 << (8 * bits.itemsize - 1)
    return int(bits.max()) < infinity and int(bits.view(unsigned).max()) < infinity + sign
