"""Rows that lie on other nodes, as one reader asks for them. A run of one node asks nobody."""

from collections.abc import Iterable
from typing import Any

from ray.actor import ActorHandle

from streamrl.buffers.segments.places import HOME, node_of
from streamrl.services.actors.deadline import within_or_paused
from streamrl.types import FrameRef


class FarRows:
    """reader: its name; a successor of the same name takes over what it holds. home: the actor of the run's own node,
    None in a run that has no others. leases: whether the reader has the lease of the step that it asks for.

    Example:
        lost = await far.lost(lease.frames)
    """

    def __init__(self, reader: str, home: ActorHandle | None, limit_s: float, *, leases: bool) -> None:
        self._reader = reader
        self._home = home
        self._limit_s = limit_s
        self._leases = leases

    async def lost(self, frames: Iterable[FrameRef]) -> set[FrameRef]:
        """Have the rows of frames here until this is asked again. Returns the frames that are lost: the queue knows.

        Raises DataError when bytes are damaged, DeadlineError when they do not come in time.
        """
        far = [frame for frame in frames if node_of(frame.path) != HOME]
        if self._home is None or not far:
            return set()
        bringing: Any = self._home.bring.remote(self._reader, far, self._leases)
        what, pause = f"{len(far)} frames of other nodes", self._home.pause.remote
        return set(await within_or_paused(self._limit_s, bringing, who=self._reader, what=what, pause=pause))
