"""Named torch tensors as plain bytes: order, finiteness, digests.

Guarantees: a digest depends on the numbers, their format and shape, and not on strides or device. A
non-finite number is found as it is copied, with nothing of the tensor's size beside. It does not know where the
bytes go.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import torch
import xxhash

from streamrl.errors import DataError, NonFiniteError
from streamrl.weights.copy_kernel import Bits, copy
from streamrl.weights.manifest import ITEM_BYTES, TensorEntry, combined_digest, entry_bytes

CHUNK_BYTES = 512 * 1024
"""Fits a second-level cache: a chunk is checked, digested and copied while it is there."""

_BITS: Final = {
    torch.float32: (torch.int32, 0x7F800000, np.int32(0x7FFFFFFF)),
    torch.bfloat16: (torch.int16, 0x7F80, np.int16(0x7FFF)),
    torch.float16: (torch.int16, 0x7C00, np.int16(0x7FFF)),
}
"""How a format's bits are seen as numbers, those of its infinity, and all but the sign's."""

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
        for chunk in chunks(flat_bits(tensor)):
            hasher.update(chunk.data)
        entries.append(described(name, tensor, 0, hasher.hexdigest()))
    return combined_digest(entries)


def described(name: str, tensor: torch.Tensor, offset: int, digest: str = "") -> TensorEntry:
    """The manifest entry of a tensor. Raises DataError for a format that weights cannot have."""
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if dtype not in ITEM_BYTES:
        raise DataError(f"tensor {name!r} is {dtype}; weights are {', '.join(ITEM_BYTES)}: leave it out or cast it")
    return TensorEntry(name, dtype, shape, offset, entry_bytes(dtype, shape), digest)


def flat_bits(tensor: torch.Tensor) -> Bits:
    """The tensor's elements in order, as signed integers of their bits, on the CPU; a view where possible."""
    return tensor.detach().cpu().contiguous().view(-1).view(_BITS[tensor.dtype][0]).numpy()


def chunks(bits: Bits) -> Iterator[Bits]:
    """Views of at most `CHUNK_BYTES`, in order; none of an empty tensor."""
    length = CHUNK_BYTES // bits.itemsize
    return (bits[start : start + length] for start in range(0, len(bits), length))


def copy_finite(name: str, dtype: torch.dtype, chunk: Bits, target: Bits) -> None:
    """Copy a chunk of a tensor's bits. Raises NonFiniteError, naming the tensor, when it holds NaN or infinity.

    By the order of the bits: without their sign those of NaN and infinity are the largest. So a copy, and a maximum of
    integers beside it, at the speed of the copy in every format.
    """
    _, infinity, magnitude = _BITS[dtype]
    if copy(chunk, target, magnitude) >= infinity:
        numbers = torch.from_numpy(chunk).view(dtype)
        count = int((~torch.isfinite(numbers)).sum())
        raise NonFiniteError(
            f"tensor {name!r} holds at least {count} NaN or infinite numbers: it is not published. "
            "Resume from the last checkpoint with a lower learner.optimizer.lr"
        )
