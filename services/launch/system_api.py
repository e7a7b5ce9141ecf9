"""What the owner asks of the running system: the seam between the processes' lifecycle and the training
itself.

`streamrl.services.launch.system` implements it on Ray actors; the lifecycle's tests bring a small one of their own.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from streamrl.config.schema.run import Config
from streamrl.services.run.folder import RunFolder
from streamrl.types import EvalSampling


class System(Protocol):
    """A started system. Every method may raise a StreamRLError, which ends the run with its exit code."""

    async def run(self) -> dict[str, Any]:
        """Train to the end and return the summary. After `stop` it returns or raises soon; both are
        ignored.
        """
        ...

    def events(self) -> AsyncIterator[dict[str, Any]]:
        """What happens, as it happens, each with a `kind` (see `streamrl.services.run.view_state` for those that are
        shown).
        """
        ...

    async def status(self) -> dict[str, Any]:
        """The present state, for `streamrl status`."""
        ...

    async def evaluate(self, sampling: EvalSampling | None = None) -> dict[str, Any]:
        """Score the held-out items under the newest version: as the run does, or with other samples."""
        ...

    async def scale(self, wanted: Mapping[str, int | None]) -> None:
        """Have so many of these parts (`streamrl.services.run.scaling.KEYS`) from now on, at least one; None leaves
        replicas to autoscaling. Waits for none of them."""
        ...

    async def stop(self) -> None:
        """End cleanly: a checkpoint of what is trained, then every actor gone. Also called after `run`
        ended.
        """
        ...


StartSystem = Callable[[RunFolder, Config], Awaitable[System]]
