"""The owner of a run, which tells by a real control socket what a test has it tell."""

import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from streamrl.services.run.control.server import ControlServer, EventHub
from streamrl.services.run.folder import Launch, RunFolder
from streamrl.services.run.liveness import ProcessId


class ScriptedOwner:
    """hub: what it publishes goes to all who follow the run. status: what its controller says, when it is asked; asked:
    how often it was."""

    def __init__(self) -> None:
        self.hub = EventHub()
        self.status: dict[str, Any] = {"steps": 0}
        self.asked = 0

    def answers(self) -> dict[str, Any]:
        """In the place of the controller."""
        self.asked += 1
        return self.status

    @asynccontextmanager
    async def serving(self, run: RunFolder) -> AsyncIterator[None]:
        """Own a run, until its end."""
        # A socket's path may have 107 letters, and a test's folder has more.
        with tempfile.TemporaryDirectory() as runtime, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            path = Path(runtime) / "control.sock"
            listener.bind(str(path))
            listener.listen()
            me = ProcessId.own()
            run.start_launch(Launch(owner=me, watcher=me, runtime=runtime, control=str(path), started_ns=0))
            async with ControlServer(listener, self.hub, {}):
                try:
                    yield
                finally:
                    self.hub.close()
