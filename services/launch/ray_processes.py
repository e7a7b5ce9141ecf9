"""The processes without which a Ray of our own is lost: its raylet and its GCS server; and what these leave behind.

Ray itself tells of their death late: its actors go on talking to each other for half a minute or more, while nothing
new can be started. The kernel tells at once.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterable
from typing import Any, TypeVar

import psutil

from streamrl.errors import ProcessDiedError

NAMES = ("raylet", "gcs_server")
_END_S = 5.0
T = TypeVar("T")


def ray_processes() -> dict[int, str]:
    """Those that this process started, as names by process id; none where Ray is a cluster's."""
    return {child.pid: child.name() for child in psutil.Process().children() if child.name() in NAMES}


def end_orphans(watcher: int) -> None:
    """End what a dead raylet left behind: the kernel made the watcher, our parent, the parent of its workers. They look
    for a parent of pid 1 to see that they are lost, and would stay."""
    if os.getppid() != watcher:
        return
    orphans = [child for child in psutil.Process(watcher).children() if child.pid != os.getpid()]
    for orphan in orphans:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()
    psutil.wait_procs(orphans, timeout=_END_S)


async def unless_ray_dies(work: "asyncio.Future[T]", processes: dict[int, str]) -> T:
    """Await `work`, but leave it, still running, when one of `processes` ends first.

    Raises ProcessDiedError that names it.
    """
    death = asyncio.create_task(_first_death(processes), name="death of Ray")
    try:
        both: set[asyncio.Future[Any]] = {work, death}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ProcessDiedError(f"Ray's {processes[death.result()]} died")
        return work.result()
    finally:
        death.cancel()
        await asyncio.gather(death, return_exceptions=True)


async def _first_death(pids: Iterable[int]) -> int:
    loop = asyncio.get_running_loop()
    dead: asyncio.Future[int] = loop.create_future()
    opened: list[int] = []

    def tell(pid: int) -> None:
        if not dead.done():
            dead.set_result(pid)

    try:
        for pid in pids:
            try:
                opened.append(os.pidfd_open(pid))
            except ProcessLookupError:
                return pid
            loop.add_reader(opened[-1], tell, pid)
        return await dead
    finally:
        for fd in opened:
            loop.remove_reader(fd)
            os.close(fd)
