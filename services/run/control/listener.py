"""The control socket's place in the file system. Apart from its server, so that who makes it imports no event loop."""

import socket
from pathlib import Path
from typing import Final

LOOK_S: Final = 5.0
"""Seconds between two looks of the owner whether the socket's file is there."""


def listen_at(path: Path) -> socket.socket:
    """A listening Unix socket that only this user may connect to; its folder has mode 0700 already."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(64)
    return listener
