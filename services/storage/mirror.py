"""The copies of a run's checkpoints in its second place, made beside the run.

    a checkpoint is committed here -> upload, in a child process, within deadlines.upload_s -> told in `status`
                                            fails -> told once -> pause of 1, 2, 4, ... 60 s -> the newest one again

Guarantees: the run never waits for the store but at its end, for as long as it is told; one upload at a time, always of
the newest checkpoint; a failure is told when it begins and when it is over, and in `status` in between. A launch that
was replaced at the address puts nothing there any more.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from streamrl.config import Config
from streamrl.errors import FencedError, StreamRLError
from streamrl.services.run.folder import RunFolder
from streamrl.services.storage.ask import ask_beside
from streamrl.services.storage.orders import Order, Upload
from streamrl.services.storage.place import address_of

LONGEST_PAUSE_S: Final = 60.0
STOP_SHARE: Final = 0.4
"""Of `deadlines.stop_s`: what a run that is stopped has for its last upload."""

Ask = Callable[[Order, float], Awaitable[dict[str, Any]]]


class UploadBooks:
    """What is to be stored, what is, and how often that failed in a row. Pure.

    Example:
        books.committed(40)
        while books.is_due: ...
    """

    def __init__(self) -> None:
        self.wanted = self.stored = -1
        self.failures = 0
        self.reason = ""
        self.is_fenced = False

    def committed(self, step: int) -> None:
        """The newest checkpoint here is of that step. A learner that begins again may go back to an older one."""
        self.wanted = step

    @property
    def is_due(self) -> bool:
        return self.wanted >= 0 and self.wanted != self.stored and not self.is_fenced

    def succeeded(self, step: int) -> str:
        """What there is to tell; "" for nothing."""
        was_failing, self.failures, self.reason, self.stored = self.failures, 0, "", step
        return f"checkpoints are stored again, that of step {step} is there" if was_failing else ""

    def failed(self, reason: str) -> tuple[float, str]:
        """Seconds until the next try, and what there is to tell; "" for nothing."""
        self.failures += 1
        told = (
            "" if self.reason else f"the checkpoint of step {self.wanted} is not stored yet, and is tried on: {reason}"
        )
        self.reason = reason
        return min(LONGEST_PAUSE_S, 2.0 ** (self.failures - 1)), told


class CheckpointMirror:
    """See the module. One event loop uses it.

    Example:
        mirror = CheckpointMirror(run, config, tell)
        mirror.start()
        mirror.committed(40)
        await mirror.finish(limit_s)
    """

    def __init__(self, run: RunFolder, config: Config, tell: Callable[[str], None], ask: Ask = ask_beside) -> None:
        """tell: takes a sentence for the user."""
        self._run, self._config, self._tell, self._ask = run, config, tell, ask
        self._books = UploadBooks()
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._facts: dict[str, Any] = {}

    def start(self) -> None:
        if self._config.checkpoint.folder is not None:
            self._task = asyncio.create_task(self._keep(), name="checkpoint mirror")

    def committed(self, step: int) -> None:
        """A checkpoint of that step is committed in the run folder."""
        if self._task is None:
            return
        self._books.committed(step)
        if self._books.is_due:
            self._idle.clear()
            self._changed.set()

    async def finish(self, limit_s: float) -> None:
        """Wait until the newest checkpoint is stored, at most so long, then end; tells when it is not. Raises what no
        store is to blame for."""
        if self._task is None:
            return
        idle = asyncio.ensure_future(self._idle.wait())
        await asyncio.wait({idle, self._task}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        idle.cancel()
        task, self._task = self._task, None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if self._books.is_due:
            why = self._books.reason or f"{limit_s:g} s were not enough"
            self._tell(
                f"the checkpoint of step {self._books.wanted} is in the run folder, and not in {self._address}: {why}; "
                "the next `streamrl up` stores it"
            )

    def status(self) -> dict[str, Any]:
        """For `streamrl status`; empty without a second place."""
        if self._config.checkpoint.folder is None:
            return {}
        failing = {"failing": self._books.reason} if self._books.reason else {}
        return {"stored": {"address": self._address, **self._facts, **failing}}

    @property
    def _address(self) -> str:
        return address_of(self._config)

    async def _keep(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._books.is_due:
                await self._upload()
            self._idle.set()

    async def _upload(self) -> None:
        settings, wanted = self._config.checkpoint, self._books.wanted
        order = Upload(
            address=self._address,
            run_folder=str(self._run.path.resolve()),
            token=self._run.record.store_token,
            keep=settings.keep,
            byte_budget=settings.byte_budget,
        )
        try:
            facts = await self._ask(order, self._config.deadlines.upload_s)
        except FencedError as error:
            self._books.is_fenced = True
            self._books.reason = str(error)
            self._tell(str(error))
        except StreamRLError as error:
            pause_s, told = self._books.failed(str(error))
            if told:
                self._tell(told)
            await self._newer_or(pause_s)
        else:
            self._facts = facts
            # A newer one may have been committed since. If that was before the parts were opened, that one was stored.
            if told := self._books.succeeded(wanted if self._books.wanted == wanted else facts["step"]):
                self._tell(told)

    async def _newer_or(self, pause_s: float) -> None:
        """Wait for a newer checkpoint, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._changed.wait()
        self._changed.clear()
