"""A safetensors file in pieces: its head, then each tensor's own bytes. Nothing is copied, and no lock is held while a
piece goes to the disk, so a save of many gigabytes does not stop the steps beside it.

Guarantees: the pieces, one after the other, are a file that any safetensors reader opens. Does no I/O.
"""

import json
import struct
from collections.abc import Mapping
from typing import Final

import torch

from streamrl.errors import DataError

NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT: Final = 8


def pieces(tensors: Mapping[str, torch.Tensor]) -> list[memoryview]:
    """The file of these tensors, each contiguous, on the CPU and with memory of its own. Views: they must not change.

    Raises:
        DataError: a number format that the file has no name for.
    """
    # The widest first, so that each begins at a multiple of its own width.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    bodies = [_bytes_of(tensors[name]) for name in order]
    head, end = {}, 0
    for name, body in zip(order, bodies, strict=True):
        tensor = tensors[name]
        if tensor.dtype not in NAMES:
            raise DataError(f"tensor {name}: no checkpoint holds {tensor.dtype}; it holds {', '.join(map(str, NAMES))}")
        offsets = [end, end + len(body)]
        head[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        end += len(body)
    raw = json.dumps(head).encode()
    raw += b" " * (-len(raw) % _ALIGNMENT)
    return [memoryview(struct.pack("<Q", len(raw)) + raw), *bodies]


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    return memoryview(tensor.flatten().view(torch.uint8).numpy())
