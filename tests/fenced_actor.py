"""A replica's place on Ray, whose process sleeps through its replacement: `python fenced_actor.py RUN_FOLDER RUNTIME`.

Prints one JSON object: what the process was told when it woke, and the queue's books when it was replaced and after.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil

from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import Config, ModelConfig, RayConfig
from streamrl.services.launch import ray_session
from streamrl.services.run.folder import RunFolder

NAME = "rollout-0"


class Sleeper:
    """Takes groups, writes rows and has them accepted, for as long as it is let."""

    def __init__(self, run_folder: str, queue: Any) -> None:
        self._folder = Path(run_folder)
        self._queue = queue
        self._accepted = asyncio.Event()

    async def accepted(self) -> int:
        """Its process, once a row of its was accepted."""
        await self._accepted.wait()
        return os.getpid()

    async def work(self, epoch: int) -> None:
        import numpy as np
        from support.runs.small_run import GROUP_SIZE, completion_rows

        from streamrl.buffers.rows.arrow import completions_batch
        from streamrl.buffers.rows.records import AcceptedRows
        from streamrl.buffers.rows.schema import COMPLETIONS
        from streamrl.buffers.segments.places import COMPLETIONS_DIR
        from streamrl.buffers.segments.writer import SegmentWriter
        from streamrl.types import Version

        log = SegmentWriter(self._folder, COMPLETIONS_DIR, NAME, epoch, COMPLETIONS, 2**20, "disk", 0.005)
        for sequence in itertools.count():
            (ticket,) = await self._queue.take.remote(NAME, epoch, Version(0, 0), 1)
            rows = completion_rows(ticket, 0)
            frame = await asyncio.wrap_future(log.append(completions_batch(rows)))
            numbers = np.full(GROUP_SIZE, ticket.number, np.int64)
            await self._queue.accept.remote(NAME, epoch, sequence, frame, AcceptedRows.of(rows, numbers))
            self._accepted.set()


def main(folder: str, runtime: str) -> None:
    run = RunFolder.open(Path(folder))
    ray_session.start(run, RayConfig(num_cpus=1), Path(runtime))
    import ray

    from streamrl.services.controller.parts import Parts

    config = Config(
        model=ModelConfig(preset="tiny-qwen3"),
        rollout=RolloutConfig(group_size=2),
        learner=LearnerConfig(groups_per_step=1000),
    )
    queue = Parts(folder, config).queue()
    ray.get(queue.open.remote(0, 7))
    environment = {"PYTHONPATH": str(Path(__file__).parent)}
    actor = ray.remote(Sleeper).options(num_cpus=0, max_concurrency=4, runtime_env={"env_vars": environment})
    sleeper = actor.remote(folder, queue)
    work = sleeper.work.remote(ray.get(queue.next_epoch.remote(NAME)))
    process = psutil.Process(ray.get(sleeper.accepted.remote()))
    process.send_signal(signal.SIGSTOP)
    while process.status() != psutil.STATUS_STOPPED:
        pass
    ray.get(queue.next_epoch.remote(NAME))
    replaced = ray.get(queue.status.remote())
    process.send_signal(signal.SIGCONT)
    try:
        told = str(ray.get(work))
    except ray.exceptions.RayTaskError as error:
        told = str(error)
    after = ray.get(queue.status.remote())
    print(json.dumps({"told": told, "replaced": msgspec.to_builtins(replaced), "after": msgspec.to_builtins(after)}))
    ray_session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
