"""Environments behind an OpenEnv server: `reset` and `step` over its WebSocket, one connection for an episode.

Speaks the server's protocol as of OpenEnv 0.10 (`openenv.core.env_server.types`, messages `WS...`); the package itself
is not needed here.
"""

import json
from typing import Any

import aiohttp

from streamrl.environments.base import Done, Message
from streamrl.errors import ComponentError, ConfigError

MOST_BYTES = 2**24
"""Of one message of the server."""
JSON = "json"
_TOLD_TO_THE_MODEL = ("VALIDATION_ERROR",)
"""Codes of errors that the model's action caused."""


class OpenEnvironment:
    """One episode of the environment at `url`, `http://HOST:PORT`. Its reward is the sum over all steps.

    action: the field of the environment's action that takes the model's text; `json` when the model writes the whole
    action, as the last JSON object of its message. observation: the field that the model is shown; the whole
    observation as JSON where it is absent. instructions: what the first message begins with. The row's `seed`, and what
    it has under `reset`, are given to the server's `reset`.

    An action that the server does not take is told to the model, and costs a turn.
    """

    def __init__(self, url: str, action: str = JSON, observation: str | None = None, instructions: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"environment 'openenv': url is {url!r}; it is of the form http://HOST:PORT")
        self._url = f"{url.rstrip('/')}/ws"
        self._action = action
        self._observation = observation
        self._instructions = instructions
        self._session: aiohttp.ClientSession | None = None
        self._reward = 0.0
        self._steps = self._invalid = 0

    async def reset(self, row: dict[str, Any]) -> list[Message]:
        """The first observation, behind the instructions."""
        self._session = aiohttp.ClientSession()
        self._socket = await self._session.ws_connect(self._url, max_msg_size=MOST_BYTES)
        given = {"seed": row["seed"]} if "seed" in row else {}
        text = self._shown(await self._ask("reset", {**given, **row.get("reset", {})}))
        return [{"role": "user", "content": f"{self._instructions}\n{text}" if self._instructions else text}]

    async def step(self, message: Message) -> list[Message] | Done:
        """The next observation, or the end."""
        action = self._action_of(str(message["content"]))
        if action is None:
            return self._wrong("Write your action as one JSON object.")
        try:
            told = await self._ask("step", action)
        except _WrongAction as error:
            return self._wrong(str(error))
        self._steps += 1
        self._reward += float(told.get("reward") or 0.0)
        return self.truncated() if told.get("done") else [{"role": "user", "content": self._shown(told)}]

    def truncated(self) -> Done:
        """What it has gathered."""
        return Done(self._reward, {"steps": self._steps, "invalid_actions": self._invalid})

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _wrong(self, text: str) -> list[Message]:
        self._invalid += 1
        return [{"role": "user", "content": text}]

    def _action_of(self, text: str) -> dict[str, Any] | None:
        return _last_object(text) if self._action == JSON else {self._action: text}

    def _shown(self, told: dict[str, Any]) -> str:
        observation = told.get("observation", told)
        found = observation if self._observation is None else observation.get(self._observation)
        return found if isinstance(found, str) else json.dumps(found)

    async def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        await self._socket.send_json({"type": kind, "data": data})
        answer = await self._socket.receive()
        if answer.type is not aiohttp.WSMsgType.TEXT:
            raise ComponentError(f"{self._url}: the server closed the connection instead of answering {kind!r}")
        told = json.loads(answer.data)
        found: dict[str, Any] = told.get("data", {})
        if told.get("type") != "error":
            return found
        text = f"{found.get('code', 'error')}: {found.get('message', found)}"
        if found.get("code") in _TOLD_TO_THE_MODEL:
            raise _WrongAction(text)
        raise ComponentError(f"{self._url}: {kind}: {text}")


class _WrongAction(ComponentError):
    """The server does not take what the model wrote."""


def _last_object(text: str) -> dict[str, Any] | None:
    """The last JSON object in a text; None where there is none."""
    decoder, found, at = json.JSONDecoder(), None, text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            found = value
        at = text.find("{", end)
    return found
