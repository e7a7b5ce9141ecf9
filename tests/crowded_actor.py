"""An actor on a node that Ray holds to be short of memory, and ends for it: prints, as JSON, what a call of it meets.

python crowded_actor.py FOLDER RUNTIME
"""

import json
import os
import sys
import threading
from pathlib import Path

import psutil

from streamrl.config.schema.run import RayConfig
from streamrl.services.launch import ray_session
from streamrl.services.run.folder import RunFolder

ROOM, EATEN = 600 * 2**20, 1500 * 2**20
"""Bytes that Ray has left before it acts, and what the actor takes."""


class Crowded:
    """Takes memory until it is ended."""

    def ready(self) -> None: ...

    def eat(self) -> None:
        eaten = bytearray(EATEN)
        eaten[::4096] = b"." * len(eaten[::4096])
        threading.Event().wait()


def main(folder: str, runtime: str) -> None:
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + ROOM) / memory.total
    os.environ["RAY_memory_usage_threshold"] = str(threshold)  # noqa: SIM112 - Ray's own name
    ray_session.start(RunFolder.open(Path(folder)), RayConfig(num_cpus=1), Path(runtime))
    import ray

    from streamrl.services.actors.deaths import explain_death, process_died

    actor = ray.remote(Crowded).options(num_cpus=0).remote()
    try:
        # What others on the machine take meanwhile may have it ended before it eats: the same death.
        ray.get(actor.ready.remote(), timeout=60)
        ray.get(actor.eat.remote(), timeout=60)
    except ray.exceptions.RayError as error:
        print(json.dumps({"died": process_died(error), "told": str(explain_death("rollout-0", error))}))
    ray_session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
