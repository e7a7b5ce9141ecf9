"""Sees that a run stands still, writes down the stacks of its processes, and says what it waits for.

    keep    asks every part what it is at, each for itself and for two seconds at most; knows the time; ends nothing

Apart from the controller's other loops, each of which may be what stands still. What counts as movement, and what is
said, is decided by `streamrl.observability.stall_detector`; how stacks are had by
`streamrl.services.actors.stack_dump`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ray.actor import ActorHandle

from streamrl.clock import Clock
from streamrl.config import Config
from streamrl.config.estimates.log_budget import log_shares
from streamrl.config.schema.streams import TASK, Share
from streamrl.errors import StreamRLError
from streamrl.observability.stall_detector import Change, Parts, StallWatch, wait_line
from streamrl.services.actors.short_call import short_call
from streamrl.services.actors.stack_dump import dump, find_py_spy
from streamrl.services.controller.health.report_files import STACKS, write_report
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.layout import STACKS_FOLDER
from streamrl.types import Version

LOOK_EVERY_S = 5.0
LOOKS = 10
"""In the time of a stall, at least."""


class StallMonitor:
    """Of one run. ask: for what each part says of itself (`part_statuses`). disk_low: whether it pauses for its disk.
    far_stacks: of each other node its id, the stacks there, and of how many processes. tell: takes what a person should
    know."""

    def __init__(
        self,
        run: RunFolder,
        config: Config,
        clock: Clock,
        *,
        ask: Callable[[], Awaitable[Parts]],
        disk_low: Callable[[], bool],
        far_stacks: Callable[[], Awaitable[list[tuple[str, str, int]]]],
        tell: Callable[[str], None],
    ) -> None:
        limit = config.deadlines.stall_s
        self._run = run
        self._budget = log_shares(config).reports
        self._task_weight = config.gateway.shares.get(TASK, Share()).weight
        self._every_s = min(LOOK_EVERY_S, limit / LOOKS)
        self._watch = StallWatch(clock, limit)
        self._ask, self._disk_low, self._far_stacks, self._tell = ask, disk_low, far_stacks, tell
        self._told: dict[str, Any] = {}

    async def keep(self) -> None:
        """Look for as long as the run lasts."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.check()

    async def check(self) -> None:
        """Once; a stall is told when its stacks are written."""
        parts = await self._ask()
        waits = self._disk_low() or parts.paused() or parts.waits_for_clients(self._task_weight)
        change = self._watch.observe(parts.marks(), meant_to_move=not waits)
        if change is Change.STALLED:
            line = wait_line(parts, self._watch.still_s)
            self._told = {"text": line}
            self._told["stacks"] = await self._write(line)
            self._tell(f"{line}; {self._told['stacks']}")
        elif change is Change.MOVES_AGAIN:
            self._told = {}
            self._tell(f"the run moves again, after {self._watch.still_s:.0f} s")

    def status(self) -> dict[str, Any]:
        """For `streamrl status`; nothing of a run that moves."""
        return {"stall": {**self._told, "still_s": round(self._watch.still_s, 1)}} if self._told else {}

    async def _write(self, line: str) -> str:
        """Have the stacks in a file; where they are, in words."""
        try:
            here, far = await asyncio.gather(
                asyncio.to_thread(dump, self._run.path / STACKS_FOLDER, find_py_spy()), self._far_stacks()
            )
            text = "\n".join([line, "", here[0], *(f"######## node {node}\n\n{stacks}" for node, stacks, _ in far)])
            path = await asyncio.to_thread(write_report, self._run.logs_path, STACKS, text, self._budget)
        except (OSError, StreamRLError) as error:
            return f"the stacks could not be written down: {error}"
        return f"the stacks of {here[1] + sum(count for *_, count in far)} processes are in {path}"


async def part_statuses(
    queue: ActorHandle,
    store: ActorHandle,
    reward: Any,
    ranks: list[Any],
    replicas: dict[str, ActorHandle],
    evaluation: str,
) -> Parts:
    """Ask them all at once. reward, ranks: calls for what these say of themselves."""
    asked = (queue.movement.remote(), store.kept.remote(), reward)
    first, statuses, told = await asyncio.gather(
        asyncio.gather(*map(short_call, asked)),
        asyncio.gather(*map(short_call, ranks)),
        asyncio.gather(*(short_call(handle.status.remote()) for handle in replicas.values())),
    )
    counts, kept, scores = first
    return Parts(
        queue=counts,
        reward=scores,
        learner=statuses,
        replicas=dict(zip(replicas, told, strict=True)),
        weights=None if kept is None else str(max((Version(*version) for version in kept), default="")),
        evaluation=evaluation,
    )
