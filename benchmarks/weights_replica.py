"""A replica of the weights' benchmark, a process of its own: python weights_replica.py RUN_ID FOLDER

It opens each version whose manifest comes in, verifies it and has the torch engine copy it, and answers with the
version. The key comes first.
"""

import struct
import sys
from pathlib import Path
from typing import BinaryIO

import torch
from weights_model import engine_weights

from streamrl.weights.manifest import decode
from streamrl.weights.shm import ShmSource

_SIZE = struct.Struct("<I")


def receive(stream: BinaryIO) -> bytes:
    """One message; b"" when there are no more."""
    head = stream.read(_SIZE.size)
    return stream.read(*_SIZE.unpack(head)) if head else b""


def send(stream: BinaryIO, message: bytes) -> None:
    stream.write(_SIZE.pack(len(message)) + message)
    stream.flush()


def main(run_id: str, folder: str) -> None:
    torch.set_num_threads(1)
    source = ShmSource(run_id, receive(sys.stdin.buffer), Path(folder))
    weights = engine_weights()
    send(sys.stdout.buffer, b"ready")
    while encoded := receive(sys.stdin.buffer):
        manifest = decode(encoded)
        with source.open(manifest) as tensors:
            weights.copy_from(tensors)
        send(sys.stdout.buffer, str(manifest.version).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
