"""The Python API of a live run: prompts in, scored rollouts out, over the run's gateway.
It imports `streamrl.config`, `streamrl.tasks` and `streamrl.weights`.

    async with streamrl.connect("runs/quickstart") as client:
        async for result in client.stream({"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(100)):
            print(result.key, [rollout.reward for rollout in result.rollouts])

It needs neither torch nor Ray nor Arrow: an agent may use it in an environment of its own.
"""

from streamrl.client.address import Address
from streamrl.client.client import Client
from streamrl.client.connection import connect
from streamrl.client.prompts import PromptInput
from streamrl.client.results import Result, Rollout, Sample
from streamrl.client.script import ScriptClient
from streamrl.client.trajectories import TrajectoryStatus
from streamrl.client.weights import Weights

__all__ = [
    "Address",
    "Client",
    "PromptInput",
    "Result",
    "Rollout",
    "Sample",
    "ScriptClient",
    "TrajectoryStatus",
    "Weights",
    "connect",
]
