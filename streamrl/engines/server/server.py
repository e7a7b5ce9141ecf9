"""A server and all that belongs to it: the talk with it, its process where it is ours, its private folder.

Guarantees: `close` ends and removes what is ours, in this order, also when a part of it is gone already. It keeps no
books of requests.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

from streamrl.engines.server.contract import ServerContract
from streamrl.engines.server.loop import BackgroundLoop
from streamrl.engines.server.process.private_folder import remove_private_folder
from streamrl.engines.server.process.process import ServerProcess
from streamrl.errors import ComponentError

T = TypeVar("T")

_CLOSE_S = 5.0


class Server:
    """`name`: in errors and logs. `folder`: private, in shared memory; what the server reads from us lies there.
    `process`: None for a server that is somebody else's."""

    def __init__(self, name: str, contract: ServerContract, folder: Path, process: ServerProcess | None) -> None:
        self.name = name
        self.contract = contract
        self.folder = folder
        self._process = process
        self._loop = BackgroundLoop(name)

    def run(self, work: Coroutine[Any, Any, T], limit_s: float, what: str) -> T:
        """Do it and wait; see `BackgroundLoop.run`."""
        return self._loop.run(work, limit_s, what)

    def start(self, works: Iterable[Coroutine[Any, Any, None]], on_error: Callable[[BaseException], None]) -> None:
        """Begin it; see `BackgroundLoop.start`."""
        self._loop.start(works, on_error)

    def on_end(self, tell: Callable[[BaseException], None]) -> None:
        """Have the end of the process told, once, in another thread. A server that is somebody else's has none."""
        if self._process is not None:
            self._loop.start([self._process.ended()], tell)

    async def while_alive(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it, or raise ProcessDiedError when the process ends before."""
        if self._process is None:
            await work
            return
        task, end = asyncio.ensure_future(work), asyncio.ensure_future(self._process.ended())
        try:
            await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
            await (task if task.done() else end)
        finally:
            for one in (task, end):
                one.cancel()
            await asyncio.gather(task, end, return_exceptions=True)

    def obituary(self, error: BaseException) -> str:
        """What went wrong, and what is known of the process: how it ended, its last lines."""
        story = "" if self._process is None else f"; {self._process.story()}"
        return f"{self.name}: {error}{story}"

    def close(self) -> None:
        """End the talk, the process and the folder."""
        try:
            self._loop.cancel_all(_CLOSE_S)
            self._loop.run(self.contract.close(), _CLOSE_S, "closing the connections")
        except ComponentError:
            pass  # the process goes now, and its connections with it
        finally:
            self._loop.close()
            if self._process is not None:
                self._process.stop()
            remove_private_folder(self.folder)
