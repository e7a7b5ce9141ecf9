"""Resources servers of NeMo Gym: the task's own conversation and tools, with `seed_session`, a route for each tool, and
`verify`.

Speaks the servers' protocol as of NeMo Gym 0.4 (`nemo_gym.base_resources_server`); the package itself is not needed
here. A row of its data sets is taken as it is.
"""

import json
from typing import Any

import aiohttp

from streamrl.environments.base import Done, Message
from streamrl.errors import ComponentError, ConfigError

PARAMETERS = "responses_create_params"
_ROLES = {"developer": "system"}


class NemoGymEnvironment:
    """One episode of the resources server at `url`, `http://HOST:PORT`.

    The row has `responses_create_params`, with the conversation (`input`) and the tools; all of it goes to the server's
    `seed_session` and `verify`. A message with calls is answered by the tools, one without ends the episode. headers:
    sent with each request.
    """

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"environment 'nemo_gym': url is {url!r}; it is of the form http://HOST:PORT")
        self._url = url.rstrip("/")
        self._headers = headers or {}
        self._session: aiohttp.ClientSession | None = None
        self._row: dict[str, Any] = {}
        self._output: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []

    async def reset(self, row: dict[str, Any]) -> list[Message]:
        """The task's conversation. Raises ConfigError for a row that is no task of NeMo Gym."""
        given = row.get(PARAMETERS)
        if isinstance(given, str):  # a data set may keep nested columns as text
            given = json.loads(given)
        if not isinstance(given, dict) or "input" not in given:
            raise ConfigError(f"environment 'nemo_gym': the row has no {PARAMETERS}.input; it has {', '.join(row)}")
        self._row = {**row, PARAMETERS: given}
        self.tools = [_tool(one) for one in given.get("tools") or [] if one.get("type", "function") == "function"]
        # Which session it is the server knows by a cookie.
        jar = aiohttp.CookieJar(unsafe=True)
        self._session = aiohttp.ClientSession(cookie_jar=jar, headers=self._headers)
        await self._post("seed_session", self._row)
        return _messages(given["input"])

    async def step(self, message: Message) -> list[Message] | Done:
        """What the tools answer, or the server's verdict."""
        calls = message.get("tool_calls") or []
        if message.get("content"):
            part = {"type": "output_text", "text": message["content"], "annotations": []}
            self._say({"type": "message", "role": "assistant", "status": "completed", "content": [part]}, "msg")
        if not calls:
            return await self._verdict()
        return [await self._called(call) for call in calls]

    async def truncated(self) -> Done:
        """The server's verdict on what there is."""
        return await self._verdict()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _called(self, call: dict[str, Any]) -> Message:
        function = call["function"]
        name, arguments = function["name"], function["arguments"]
        said = {"call_id": call["id"], "name": name, "arguments": json.dumps(arguments)}
        self._say({"type": "function_call", "status": "completed", **said}, "fc")
        answer = await self._answer(name, arguments)
        self._say({"type": "function_call_output", "call_id": call["id"], "output": answer}, "fco")
        return {"role": "tool", "tool_call_id": call["id"], "name": name, "content": answer}

    async def _answer(self, name: str, arguments: Any) -> str:
        known = [tool["function"]["name"] for tool in self.tools]
        if name not in known:
            return json.dumps({"error": f"there is no tool {name!r}; there are {', '.join(known) or 'none'}"})
        assert self._session is not None
        async with self._session.post(f"{self._url}/{name}", json=arguments) as answer:
            text = await answer.text()
            if answer.status >= 500:
                raise ComponentError(f"{self._url}/{name}: status {answer.status}: {text[:200]}")
            return text  # also what it says to arguments that it does not take: the model is told

    def _say(self, item: dict[str, Any], prefix: str) -> None:
        self._output.append({"id": f"{prefix}_{len(self._output)}", **item})

    async def _verdict(self) -> Done:
        given = self._row[PARAMETERS]
        response = {
            "id": "resp_0",
            "created_at": 0.0,
            "model": "policy",
            "object": "response",
            "output": self._output,
            "parallel_tool_calls": given.get("parallel_tool_calls", True),
            "tool_choice": given.get("tool_choice", "auto"),
            "tools": given.get("tools") or [],
            "status": "completed",
        }
        found = await self._post("verify", {**self._row, "response": response})
        if not isinstance(found.get("reward"), int | float):
            raise ComponentError(f"{self._url}/verify gave no reward: {found!r:.200}")
        numbers = {key: float(value) for key, value in found.items() if isinstance(value, int | float)}
        reward = numbers.pop("reward")
        return Done(reward, {key: value for key, value in numbers.items() if key not in self._row})

    async def _post(self, route: str, body: dict[str, Any]) -> dict[str, Any]:
        assert self._session is not None
        async with self._session.post(f"{self._url}/{route}", json=body) as answer:
            text = await answer.text()
            if answer.status != 200:
                raise ComponentError(f"{self._url}/{route}: status {answer.status}: {text[:500]}")
        found = json.loads(text)
        return found if isinstance(found, dict) else {}


def _tool(given: dict[str, Any]) -> dict[str, Any]:
    """From the form of OpenAI's Responses to that of its Chat."""
    function = {key: given[key] for key in ("name", "description", "parameters") if given.get(key) is not None}
    return {"type": "function", "function": function}


def _messages(given: Any) -> list[Message]:
    """The `input` of Responses: a text, or messages whose content is a text or text parts."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Message] = []
    for one in given:
        if one.get("type", "message") != "message":
            raise ConfigError(f"environment 'nemo_gym': an input of type {one['type']!r} is not taken; messages are")
        content = one["content"]
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        messages.append({"role": _ROLES.get(one["role"], one["role"]), "content": text})
    return messages
