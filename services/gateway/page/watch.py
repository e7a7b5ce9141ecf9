"""What the gateway's page is told of a run: how it stands, what happens, and its figures over all steps; and the
figures of the runs beside it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from streamrl.config import Config
from streamrl.errors import DataError
from streamrl.gateway.page import picture
from streamrl.gateway.page.history import History
from streamrl.observability.failure import read_failure
from streamrl.observability.metrics import skipped_lines
from streamrl.services.gateway.page.feed import RunFeed
from streamrl.services.gateway.page.other_runs import OtherRuns
from streamrl.services.inspect.metrics_tail import MetricsTail
from streamrl.services.inspect.why import WINDOW, explain
from streamrl.services.run.folder import RunFolder

T = TypeVar("T")


class RunWatch:
    """See the module. status: what the controller says of the running system."""

    def __init__(self, run: RunFolder, config: Config, status: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._run = run
        self._config = config
        self._status = status
        self._tail = MetricsTail(run.metrics_path, WINDOW)
        self._others = OtherRuns(run.path)
        self._one_by_one = asyncio.Lock()
        launch = run.record.launch
        self.feed = RunFeed(None if launch is None else Path(launch.control), self.picture)

    async def picture(self) -> dict[str, Any]:
        """How the run stands, with what follows from it. Raises what `status` raises."""
        status = await self._status()
        rows, components = await self._of_history(
            lambda history: ([dict(row) for row in history.newest], history.components())
        )
        found = [finding.text for finding in await asyncio.to_thread(explain, rows, self._config)]
        if self._tail.skipped:
            found.append(skipped_lines(self._tail.skipped, self._tail.first_skipped))
        return {
            **status,
            "run": {**self._facts(), "components": components},
            "waits": msgspec.to_builtins(picture.who_waits(rows, status)),
            "behind": msgspec.to_builtins(picture.behind(status)),
            "queue_rows": picture.queue_rows(status),
            "dropped": picture.dropped_groups(status),
            "why": found,
            "evaluations": await asyncio.to_thread(self._run.evaluations),
        }

    async def history(self, points: int, figures: list[str], run: str = "") -> dict[str, Any]:
        """The run's figures over its steps, as `History.reduced`. run: another one, by its name; "" for this one.
        Raises Refusal for one that is not there."""
        if not run:
            return await self._of_history(lambda history: history.reduced(points, figures))
        return await self._alone(lambda: self._others.history(run).reduced(points, figures))

    async def runs(self) -> list[dict[str, Any]]:
        """The runs that lie beside this one, as `OtherRuns.names`."""
        return await self._alone(self._others.names)

    async def end(self) -> None:
        """End all readers. Why the run fails, if it does, is their last word: the gateway may be told to end before the
        owner's event has come here, and whoever fails writes it down before anybody reacts to it."""
        with suppress(DataError):  # a report that cannot be read is none
            report = await asyncio.to_thread(read_failure, self._run.path)
            if report is not None:
                self.feed.tell({"kind": "failure", **msgspec.to_builtins(report)})
        await self.feed.close()

    async def close(self) -> None:
        await self.feed.close()
        self._tail.close()
        self._others.close()

    async def _of_history(self, use: Callable[[History], T]) -> T:
        """What `use` makes of all rows by now."""
        return await self._alone(lambda: use(self._tail.read()))

    async def _alone(self, work: Callable[[], T]) -> T:
        """In a thread: nobody may add rows meanwhile."""
        async with self._one_by_one:
            return await asyncio.to_thread(work)

    def _facts(self) -> dict[str, Any]:
        """What does not change while the run lasts."""
        config = self._config
        return {
            "name": self._run.name,
            "steps": config.learner.steps,
            "max_staleness": config.learner.max_staleness,
            "rollouts_per_step": config.rollouts_per_step,
            "group_size": config.rollout.group_size,
        }
