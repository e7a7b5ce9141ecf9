"""Two processes that pass bytes to each other by a collective library: gloo, or NCCL where both have a GPU.

    host   lobby = Lobby(address)  ->  lobby.join(...)   rank 0    pair.send(content)
    guest  join(lobby.place, ...)                        rank 1    pair.receive(num_bytes)

Guarantees: each pair is a group of its own, beside whatever group the process is in, so it comes and goes without any
other; every wait has a limit and ends in an error that names the peer, the phase and what was to be passed on; `close`
leaves no thread and no socket. It does not check what arrives. All calls block: make them beside an event loop.

The lobby listens on the address that it is given, for whoever reaches that: use a network of the run's own.
"""

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Literal

import msgspec
import numpy as np
import torch
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from streamrl.errors import ComponentError, ConfigError, DeadlineError, ProcessDiedError, ResourceError
from streamrl.weights.delta.files import Content

PIECE_BYTES: Final = 16 * 2**20
"""Of one message."""
HOST, GUEST = 0, 1

Backend = Literal["gloo", "nccl"]


class Place(msgspec.Struct, frozen=True):
    """Where a guest finds its host, and what they speak."""

    address: str
    port: int
    backend: Backend


class Peer(msgspec.Struct, frozen=True):
    """Who is at the other end, for messages, and the seconds that it has for each phase."""

    name: str
    limit_s: float


class Lobby:
    """A host that waits for one guest. `join` or `close` ends it."""

    def __init__(self, address: str, backend: Backend, limit_s: float) -> None:
        """Raises ResourceError when nothing can listen there, ConfigError for NCCL without a GPU."""
        if backend == "nccl" and not torch.cuda.is_available():
            raise ConfigError('weights.collective_backend = "nccl" needs a GPU on every node; set "gloo"')
        try:
            listener = socket.create_server((address, 0))
        except OSError as error:
            raise ResourceError(f"weights: nothing can listen on {address}: {error.strerror}") from error
        self.place = Place(address, listener.getsockname()[1], backend)
        self._store: TCPStore | None = TCPStore(
            address,
            self.place.port,
            is_master=True,
            timeout=timedelta(seconds=limit_s),
            wait_for_workers=False,
            # Else it would listen on every address of this machine.
            master_listen_fd=listener.detach(),
        )

    def join(self, peer: Peer, what: str) -> "Pair":
        """Wait for the guest. Raises DeadlineError when it does not come."""
        store, self._store = self._store, None
        assert store is not None, "a lobby is joined once"
        started = time.monotonic()
        try:
            return _pair(self.place, store, HOST, self.place.address, peer)
        except RuntimeError as error:
            raise _typed(error, peer, "rendezvous", what, started) from error.with_traceback(None)
        finally:
            # An error keeps this frame, and must not keep the store: its end is what the guest notices.
            del store

    def close(self) -> None:
        self._store = None


def join(place: Place, address: str, peer: Peer, what: str) -> "Pair":
    """Come to the host at `place`, being reached at `address`. Raises DeadlineError, or ProcessDiedError when it went
    away."""
    store, started = None, time.monotonic()
    try:
        store = TCPStore(place.address, place.port, is_master=False, timeout=timedelta(seconds=peer.limit_s))
        return _pair(place, store, GUEST, address, peer)
    except RuntimeError as error:
        raise _typed(error, peer, "rendezvous", what, started) from error.with_traceback(None)
    finally:
        del store


class Pair:
    """One end. One thread at a time uses it; after an error it is of no more use."""

    def __init__(self, group: Any, rank: int, peer: Peer, backend: Backend) -> None:
        self._group: Any = group
        self._other = GUEST if rank == HOST else HOST
        self._peer = peer
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")

    def send(self, content: Content, what: str) -> None:
        """Pass on all bytes, in pieces. Raises DeadlineError when one is not taken in time, ProcessDiedError when the
        peer is gone."""
        whole = torch.from_numpy(content)
        for start in range(0, len(whole), PIECE_BYTES):
            began = time.monotonic()
            try:
                piece = whole[start : start + PIECE_BYTES].to(self._device)
                self._group.send([piece], self._other, 0).wait(self._limit)
            except RuntimeError as error:
                phase = f"send of byte {start}"
                raise _typed(error, self._peer, phase, what, began) from error.with_traceback(None)

    def receive(self, num_bytes: int, what: str) -> memoryview:
        """The next bytes, as many as the peer sends in one piece: `PIECE_BYTES`, fewer at the end. Raises as `send`."""
        began = time.monotonic()
        try:
            piece = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
            self._group.recv([piece], self._other, 0).wait(self._limit)
            data: np.ndarray = piece.cpu().numpy()
        except RuntimeError as error:
            raise _typed(error, self._peer, "receive", what, began) from error.with_traceback(None)
        return data.data

    def close(self) -> None:
        """Leave the group. The peer's next call fails."""
        self._group = None

    @property
    def _limit(self) -> timedelta:
        return timedelta(seconds=self._peer.limit_s)


def _typed(error: RuntimeError, peer: Peer, phase: str, what: str, began: float) -> ComponentError:
    """What the library raises is a plain RuntimeError, whatever happened. Give it on without its traceback: that
    would keep group and store."""
    where = f"weights: {phase} of {what} with {peer.name}"
    if time.monotonic() - began >= peer.limit_s:
        return DeadlineError(f"{where} took longer than {peer.limit_s:g} s")
    why = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return ProcessDiedError(f"{where} failed, it is gone or cut off: {why}")


def _pair(place: Place, store: TCPStore, rank: int, address: str, peer: Peer) -> Pair:
    group = _GROUPS[place.backend](store, rank, address, timedelta(seconds=peer.limit_s))
    return Pair(group, rank, peer, place.backend)


def _gloo(store: TCPStore, rank: int, address: str, limit: timedelta) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = limit
    return ProcessGroupGloo(store, rank, 2, options)


def _nccl(store: TCPStore, rank: int, _address: str, limit: timedelta) -> Any:
    # Not above: a build of torch for CPUs has none.
    from torch.distributed import ProcessGroupNCCL

    # Else a wait returns at once, and a peer that is gone ends this process some time later.
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"
    options = ProcessGroupNCCL.Options()
    options._timeout = limit
    return ProcessGroupNCCL(store, rank, 2, options)


_GROUPS: Final[dict[str, Callable[[TCPStore, int, str, timedelta], Any]]] = {"gloo": _gloo, "nccl": _nccl}
