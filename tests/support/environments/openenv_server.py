"""A server of the published OpenEnv package with a guessing game. Prints its port.

python openenv_server.py          (in an environment that has openenv)
"""

import socket
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Said(Observation):
    text: str = ""


class Game(Environment):
    """A number from 0 to 9, the seed's last digit. 1 for it, -0.25 for each other guess; 13 breaks it."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **more: Any) -> Said:
        self._number = (seed or 0) % 10 + more.get("shift", 0)
        return Said(text="Guess.", done=False)

    def step(self, action: Guess, timeout_s: float | None = None, **more: Any) -> Said:
        if action.number == 13:
            raise RuntimeError("the table broke")
        right = action.number == self._number
        return Said(text="Yes." if right else "No.", done=right, reward=1.0 if right else -0.25)

    @property
    def state(self) -> State:
        return State()


if __name__ == "__main__":
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        print(bound.getsockname()[1], flush=True)
        app = create_fastapi_app(Game, Guess, Said, max_concurrent_envs=8)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[bound])
