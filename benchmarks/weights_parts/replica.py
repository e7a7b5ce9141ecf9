"""A replica of the weights' benchmark, a process of its own: python -m weights_parts.replica RUN_ID

It opens each version whose manifest comes in, verifies it and lays the torch engine's weights over it, which it keeps
until the next, and answers with the version. The key comes first.
"""

import struct
import sys
from typing import BinaryIO

import torch

from streamrl.weights.manifest import decode
from streamrl.weights.served import ServedVersions
from weights_parts.model import engine_weights

_SIZE = struct.Struct("<I")


def receive(stream: BinaryIO) -> bytes:
    """One message; b"" when there are no more."""
    head = stream.read(_SIZE.size)
    return stream.read(*_SIZE.unpack(head)) if head else b""


def send(stream: BinaryIO, message: bytes) -> None:
    stream.write(_SIZE.pack(len(message)) + message)
    stream.flush()


def main(run_id: str) -> None:
    torch.set_num_threads(1)
    versions = ServedVersions(run_id, receive(sys.stdin.buffer))
    weights = None
    send(sys.stdout.buffer, b"ready")
    while encoded := receive(sys.stdin.buffer):
        manifest = decode(encoded)
        with versions.open(manifest) as tensors:
            weights = engine_weights(tensors)
        assert weights.copied, "the norms of q and k are repeated for each head"
        send(sys.stdout.buffer, str(manifest.version).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
