"""An actor on a node that Ray holds to be short of memory, and ends for it: prints, as JSON, what a call of it meets.

python crowded_actor.py FOLDER RUNTIME
"""

import json
import os
import sys
from pathlib import Path

from services import ray_session
from services.run_folder import RunFolder
from streamrl.config.schema import RayConfig

NOTHING_IS_ENOUGH = "0.001"


class Crowded:
    """Waits to be ended."""

    async def wait(self) -> None:
        import asyncio

        await asyncio.Event().wait()


def main(folder: str, runtime: str) -> None:
    os.environ["RAY_MEMORY_USAGE_THRESHOLD"] = NOTHING_IS_ENOUGH
    ray_session.start(RunFolder.open(Path(folder)), RayConfig(num_cpus=1), Path(runtime))
    import ray

    from services.deaths import explain_death, process_died

    actor = ray.remote(Crowded).options(num_cpus=0).remote()
    try:
        ray.get(actor.wait.remote(), timeout=60)
    except ray.exceptions.RayError as error:
        print(json.dumps({"died": process_died(error), "told": str(explain_death("rollout-0", error))}))
    ray_session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
