"""Has a run pause while its disk is nearly full, and says so; it goes on by itself when there is room again.

Looks when it is told to, about once a second, at the free bytes and at the parts that wait for the disk already. It
knows what it told the queue, and nothing of what is written where.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from ray.actor import ActorHandle

from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.system.disk import free_bytes
from streamrl.system.disk_space import LowDisk


class DiskWatch:
    """One run's. `tell` takes what a person should know."""

    def __init__(self, run_folder: Path, config: Config, queue: ActorHandle, tell: Callable[[str], None]) -> None:
        self._run_folder = run_folder
        self._queue = queue
        self._tell = tell
        self._disk = LowDisk(config.queue.min_free_bytes, SystemClock())

    @property
    def low(self) -> bool:
        """Whether the run pauses for it."""
        return self._disk.low

    def well_for_s(self) -> float:
        """Seconds since the disk was last seen low; infinite if it never was."""
        return self._disk.well_for_s()

    async def check(self, pauses: Iterable[str]) -> None:
        """pauses: what each part but the queue waits for on the disk, in words; "" for one that does not."""
        waiting = next(filter(None, [await self._queue.pause.remote(), *pauses]), "")
        said = self._disk.observe(free_bytes(self._run_folder), waiting)
        if said:
            await self._queue.hold.remote(self._disk.low)
            self._tell(said)
