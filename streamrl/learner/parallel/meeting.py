"""Where the ranks of a learner find each other when they are on several machines: at an address of rank 0's.

Guarantees: the port is the system's own choice, and nobody else's; it listens on that address alone, for whoever
reaches it: use a network of the run's own.
"""

import socket
from datetime import timedelta
from typing import NamedTuple

import psutil
import torch.distributed as dist

from streamrl.errors import ComponentError, ResourceError


class Meeting(NamedTuple):
    """place: "address:port" of rank 0. own: an address of this rank's machine. lobby: of rank 0, what listens there."""

    place: str
    own: str
    lobby: dist.Store | None = None

    @property
    def interface(self) -> str | None:
        """The network interface that has this rank's address; None where no one says so."""
        named = psutil.net_if_addrs().items()
        return next((name for name, addresses in named if any(one.address == self.own for one in addresses)), None)

    def store(self, limit: timedelta) -> dist.Store:
        """Blocks until rank 0 answers. Raises ComponentError when it does not."""
        if self.lobby is not None:
            return self.lobby
        address, _, port = self.place.rpartition(":")
        try:
            return dist.TCPStore(address, int(port), is_master=False, timeout=limit)
        except RuntimeError as error:
            raise ComponentError(f"rank 0 of the learner does not answer at {self.place}: {error}") from error


def listen(address: str, limit: timedelta) -> Meeting:
    """For rank 0. Raises ResourceError when nothing can listen there."""
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise ResourceError(f"learner: nothing can listen on {address}: {error.strerror}") from error
    port = listener.getsockname()[1]
    lobby = dist.TCPStore(
        address,
        port,
        is_master=True,
        timeout=limit,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # else it would listen on every address of this machine
    )
    return Meeting(f"{address}:{port}", address, lobby)
