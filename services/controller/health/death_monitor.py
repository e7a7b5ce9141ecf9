"""Says of a part's process that died how it ended, doing what, at what cost, and with which last words.

    made      a process is watched from its first call on (`streamrl.services.controller.health.watched_process`)
    update    what a part says of itself; the last of that is what it was doing
    explain   the error for whoever called it: of the very process that died, told in a report beside the logs, once

Guarantees: what cannot be had is left out, and Ray's words stand in its place: of a process on another node, of one
that died before it could be asked who it is, of an older kernel. Nobody waits longer than `SETTLE_S`.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ray.actor import ActorHandle

from streamrl.clock import Clock
from streamrl.errors import ProcessDiedError, StreamRLError
from streamrl.observability.death_report import LAST_LINES, Death, doing_of
from streamrl.services.actors.deaths import death_in, explain_death, lacked_memory, ray_error_text
from streamrl.services.controller.health.report_files import DEATH, write_report
from streamrl.services.controller.health.watched_process import WatchedProcess
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import STACKS_FOLDER
from streamrl.services.run.read_logs import last_lines, readable

LEARNER = "learner-"
"""Before the number of a rank."""
SETTLE_S = 2.0
"""For a process to be gone after the first sign of it: its connections break before."""


class DeathMonitor:
    """Of the parts that one process makes. budget: bytes of all reports in the run's folder of logs."""

    def __init__(self, run: RunFolder, budget: int, clock: Clock) -> None:
        self._run = run
        self._budget = budget
        self._clock = clock
        self._watched: dict[str, WatchedProcess] = {}
        self._told: dict[WatchedProcess, str] = {}
        self._made = 0
        """The newest step of the learner's present processes."""
        # Several may meet one death at the same time; it is one report.
        self._telling = asyncio.Lock()

    def made(self, name: str, handle: ActorHandle) -> None:
        """A process of this name is being made, in place of one that there was."""
        self.forget(name)
        if name.startswith(LEARNER):
            self._made = 0  # it goes on from a checkpoint
        self._watched[name] = WatchedProcess(name, handle, self._clock)

    def forget(self, name: str) -> None:
        """It is not wanted any more; its end is nobody's business."""
        if (watched := self._watched.pop(name, None)) is not None:
            self._told.pop(watched, None)
            watched.close()

    def update(self, statuses: Mapping[str, Mapping[str, Any] | None]) -> None:
        """What parts say of themselves, by name; None for one that does not answer."""
        for name, status in statuses.items():
            # An answer may come behind the news of a step that was made after it.
            if status is not None and name in self._watched and status.get("step", self._made) >= self._made:
                self._watched[name].record_activity(doing_of(status))

    def step_made(self, step: int) -> None:
        """The learner told of a step: its ranks have made it, whatever they were asked before that."""
        self._made = step
        for name, watched in self._watched.items():
            if name.startswith(LEARNER):
                watched.record_activity(f"it had made step {step}")

    async def explain(self, name: str, error: BaseException, cost: str = "") -> StreamRLError:
        """As `explain_death`, with what is known of the process that died, and where more of it is written. name: of
        the part that was called. cost: of its death, in words; where the death was told before, that stands."""
        told, died = explain_death(name, error), death_in(error)
        watched = None if died is None else self._find(name, getattr(died, "actor_id", None))
        if died is None or watched is None or not await watched.ended(SETTLE_S):
            return type(told)(f"{told}; {cost}") if died is not None and cost else told
        async with self._telling:
            if watched not in self._told:
                self._told[watched] = await asyncio.to_thread(self._report, watched, died, cost)
        return ProcessDiedError(self._told[watched])

    def close(self) -> None:
        for name in list(self._watched):
            self.forget(name)

    def _find(self, name: str, actor: str | None) -> WatchedProcess | None:
        """The process that an error is of: by the id of its actor, where Ray names it."""
        if actor is None:
            return self._watched.get(name)
        return next((one for one in self._watched.values() if one.actor == actor), None)

    def _report(self, watched: WatchedProcess, error: BaseException, cost: str) -> str:
        """Write down what there is to say; all of it that goes on one line."""
        doing, heard_s = watched.last_activity()
        death = Death(
            part=watched.name,
            pid=watched.pid,
            code=watched.code,
            memory_kills=watched.memory_kills,
            ray=ray_error_text(error),
            ray_memory=lacked_memory(error),
            doing=doing,
            heard_s=heard_s,
            cost=cost,
            trace=self._trace(watched),
            log=self._log(watched.name),
        )
        try:
            path = write_report(self._run.logs_path, DEATH, death.text(), self._budget, subject=watched.name)
        except (OSError, StreamRLError) as unwritten:
            return f"{death.line()}; its last words could not be written down: {unwritten}"
        return f"{death.line()}; its last words are in {path}"

    def _log(self, name: str) -> list[str]:
        with suppress(OSError):
            return [readable(line) for line in last_lines(self._run.logs_path / f"{name}.log", LAST_LINES)]
        return []

    def _trace(self, watched: WatchedProcess) -> str:
        """What it wrote on its way out, where it shows its stacks (`streamrl.system.stacks`)."""
        with suppress(OSError):
            path = self._run.path / STACKS_FOLDER / f"{watched.name}.{watched.pid}"
            return path.read_text(errors="replace")
        return ""
