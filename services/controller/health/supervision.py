"""What the controller knows of its parts' lives: whether they may start, how often they died, what failed first.

    owned             one loop of the controller; what ends it is written down, and what was seen first is the run's
                      first cause
    restart_or_raise  a part's process died: counted, told with its cause and its cost, and started again unless that
                      was once too often

`Supervision` is the `Supervisor` of every keeper of parts (`streamrl.services.controller.replicas`).
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import ray

from streamrl.clock import SystemClock
from streamrl.config import Config
from streamrl.config.estimates.log_budget import log_shares
from streamrl.errors import ComponentError, DeadlineError, ProcessDiedError, StreamRLError
from streamrl.observability.failure import FailureReport, report_failure
from streamrl.services.actors.deadline import within
from streamrl.services.actors.deaths import process_died, trace_of
from streamrl.services.actors.restarts import RestartBudget, back_off_s
from streamrl.services.controller.books import RunBook
from streamrl.services.controller.health.death_monitor import DeathMonitor
from streamrl.services.run.arithmetic import EVENT, ArithmeticRecord
from streamrl.services.run.folder import RunFolder
from streamrl.types import Arithmetic

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

T = TypeVar("T")


class Supervision:
    """See the module. training and stopping are the controller's to say; `opened` is set by `open`."""

    def __init__(self, run: RunFolder, config: Config, book: RunBook, log: "BoundLogger") -> None:
        self.deaths = DeathMonitor(run, log_shares(config).reports, SystemClock())
        self.restarts = RestartBudget()
        self.opened = asyncio.Event()
        self.training = False
        self.stopping = False
        self.longest_prompt = 0
        """In tokens, once opened."""
        self._run = run
        self._config = config
        self._book = book
        self._log = log
        self._arithmetic = ArithmeticRecord(run.path)
        # The death of one part has others fail; who was first to see it says so first.
        self._failing = asyncio.Lock()

    def open(self, longest_prompt: int) -> None:
        """The queue is open: parts may start."""
        self.longest_prompt = longest_prompt
        self.opened.set()

    async def ready(self) -> int:
        """Wait until parts may start; the longest prompt, in tokens."""
        await self.opened.wait()
        return self.longest_prompt

    async def owned(self, component: str, work: Coroutine[Any, Any, T]) -> T:
        """Await the work of a component. What fails is written down with its name before anything reacts to it."""
        try:
            return await work
        except (ray.exceptions.RayError, StreamRLError) as error:
            async with self._failing:
                raise await self._failed(component, error) from error

    async def in_time(self, who: str, call: Any) -> Any:
        """Await the start of a part."""
        return await within(self._config.deadlines.start_s, call, who=who, what="the start")

    def served(self, name: str) -> None:
        """A part does its work from now on."""
        self.restarts.served(name, self._book.newest_step)

    def excuse(self, name: str) -> None:
        """The deaths of a part were the doing of what is given up now."""
        self.restarts.excuse(name)

    async def restart_or_raise(self, name: str, error: BaseException, why: str | None = None, cost: str = "") -> None:
        """Count the death of a part, and raise it when it was once too often; wait until it may start again. why: it
        was ended by us. cost: of its death, in words."""
        if why is None:
            death = await self.deaths.explain(name, error, cost)
        else:
            death = DeadlineError("; ".join(filter(None, (f"{name} was ended: {why}", cost))))
        if not (isinstance(error, ProcessDiedError) or process_died(error)) or self.stopping:
            raise death from error
        number = self.restarts.died(name, self._book.newest_step)
        if number is None:
            raise ComponentError(f"{death}; it was started again {self.restarts.limit} times") from error
        self._book.report("notice", {"text": f"{death}; restart {number} of {self.restarts.limit}"})
        await asyncio.sleep(back_off_s(number))

    def tell(self, text: str) -> None:
        """What a person should know."""
        self._book.report("notice", {"text": text})
        self._log.warning("notice", text=text)

    def samples_by(self, arithmetic: Arithmetic) -> None:
        """How the engine of a replica multiplies rows: in the run's record, and told once."""
        event, notice = self._arithmetic.take(arithmetic)
        if event is not None:
            self._book.report(EVENT, event)
        if notice is not None:
            self.tell(notice)

    async def _failed(self, component: str, error: BaseException) -> StreamRLError:
        death = await self.deaths.explain(component, error)
        phase = "run" if self.training else "start"
        report = FailureReport.now(component, phase, str(death), self._book.version)
        if report_failure(self._run.path, report):
            self._book.events.add({"kind": "failure", **msgspec.to_builtins(report)})
        self._log.error("failed", component=component, phase=phase, cause=str(death), trace=trace_of(error))
        return death
