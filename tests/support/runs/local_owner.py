"""The real owner of a run behind its real control socket, in this process: around a small system, and without Ray."""

import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from streamrl.config import Config, dump
from streamrl.services.launch.owner import Owner
from streamrl.services.launch.start import LaunchOrder
from streamrl.services.run.control.server import ControlServer, EventHub
from streamrl.services.run.folder import Launch, RunFolder
from streamrl.services.run.liveness import ProcessId


class SmallSystem:
    """Takes every change at once. scaled: what it was told, in order."""

    def __init__(self) -> None:
        self.scaled: list[dict[str, int]] = []

    async def scale(self, wanted: Mapping[str, int]) -> None:
        self.scaled.append(dict(wanted))


@dataclass
class LocalOwner:
    """socket: of control. system: what the owner has until `starts_again`."""

    owner: Owner
    socket: Path
    system: SmallSystem

    def starts_again(self) -> None:
        """The system is gone, and not back yet."""
        self.owner._system = None


@asynccontextmanager
async def local_owner(run: RunFolder, config: Config) -> AsyncIterator[LocalOwner]:
    """Owns a run that has a folder already, until it ends."""
    run.config_path.write_text(dump(config))
    # A socket's path may have 107 letters, and a test's folder has more.
    with tempfile.TemporaryDirectory() as runtime, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        control = str(Path(runtime) / "control.sock")
        listener.bind(control)
        listener.listen()
        me = ProcessId.own()
        run.start_launch(Launch(owner=me, watcher=me, runtime=runtime, control=control, started_ns=1))
        order = LaunchOrder(lock_fd=-1, control_fd=-1, runtime=runtime, started_ns=1, state="new")
        owner, system, hub = Owner(run, config, order, _starts_nothing), SmallSystem(), EventHub()
        owner._system = system  # type: ignore[assignment]
        async with ControlServer(listener, hub, owner.handlers()):
            yield LocalOwner(owner, Path(control), system)
            hub.close()


async def _starts_nothing(run: RunFolder, config: Config) -> SmallSystem:
    raise AssertionError("nobody runs this owner's system")
