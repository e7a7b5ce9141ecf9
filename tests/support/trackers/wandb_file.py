"""Reads the file that wandb writes offline: a log of records as LevelDB has it, each a message of wandb's protocol."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER, FILE_HEADER = 2**15, 7, 7
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """Each record of a `.wandb` file."""
    from wandb.proto.wandb_internal_pb2 import Record

    content = path.read_bytes()
    at, whole = FILE_HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK  # too little for a header: zeros
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            yield Record.FromString(whole)
            whole = b""
