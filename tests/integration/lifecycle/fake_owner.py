"""An owner process around a small system, for the tests of the life cycle: no torch, one real Ray actor.

The actor holds what a real one holds: a shared-memory file, and a child in a session of its own, which no
signal to a process group reaches. `STREAMRL_FAKE` in the environment scripts it: `steps` (then it is done),
`fail_at` (a step), `stuck` (it ignores the order to stop).
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from streamrl.config import Config
from streamrl.errors import ComponentError
from streamrl.services.launch.owner import own
from streamrl.services.run.folder import SHARED_MEMORY, RunFolder
from streamrl.types import EvalSampling

STEP_S = 0.02


class Part:
    """What runs in the actor."""

    def __init__(self, shared_memory: str) -> None:
        Path(shared_memory).write_bytes(b"weights")
        sleep = "import signal\nwhile True: signal.pause()"
        self._child = subprocess.Popen([sys.executable, "-S", "-c", sleep], start_new_session=True)

    def processes(self) -> list[int]:
        return [os.getpid(), self._child.pid]


class FakeSystem:
    """Counts steps in the owner's own loop."""

    def __init__(self, part: Any, pids: list[int], script: dict[str, Any]) -> None:
        self._part = part
        self._pids = pids
        self._script = script
        self._events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._step = 0

    async def run(self) -> dict[str, Any]:
        while self._step != self._script.get("steps"):
            self._step += 1
            if self._step == self._script.get("fail_at"):
                raise ComponentError("learner failed at version 0.3: the loss is nan")
            row = {"step": self._step, "reward/mean": 0.5, "time/step": STEP_S, "time/wait": float("nan")}
            self._events.put_nowait({"kind": "step", **row})
            await asyncio.sleep(STEP_S)
        return {"eval_before": 0.25, "eval_after": 0.75, "steps": self._step, "seed": 0}

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        while (event := await self._events.get()) is not None:
            yield event

    async def status(self) -> dict[str, Any]:
        return {"step": self._step, "pids": self._pids}

    async def evaluate(self, sampling: EvalSampling | None = None) -> dict[str, Any]:
        more = {} if sampling is None else {"version": "0.1", f"pass@{sampling.samples}": 0.75}
        return {"eval/score": 0.5, "step": self._step, **more}

    async def stop(self) -> None:
        if self._script.get("stuck"):
            await asyncio.Event().wait()
        self._events.put_nowait(None)


async def start_system(run: RunFolder, config: Config) -> FakeSystem:
    import ray

    part = ray.remote(num_cpus=0)(Part).remote(str(SHARED_MEMORY / f"{run.shared_memory_prefix}-v0"))
    return FakeSystem(part, await part.processes.remote(), json.loads(os.environ["STREAMRL_FAKE"]))


if __name__ == "__main__":
    sys.exit(own(sys.argv[1:], start_system))
