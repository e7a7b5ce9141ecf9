"""An OpenAI-compatible endpoint behind which an episode's model answers, for agents that call a model themselves.

The agent's request is what the model is asked next; the model's message is the answer. An agent must keep its
conversation: each of its requests goes on from the one before. Agents of one episode share a queue, and are answered
one after the other.
"""

import asyncio
import json
import time
from typing import Any, NamedTuple

from aiohttp import web

from streamrl.environments.base import Message
from streamrl.errors import ComponentError

MOST_BYTES = 2**26
"""Of one request."""


class AgentRequest(NamedTuple):
    """A request that waits for its answer. exchange: of the agent that made it."""

    exchange: "Exchange"
    body: dict[str, Any]
    answer: "asyncio.Future[Message]"


AskedQueue = asyncio.Queue[AgentRequest]


async def next_request(asked: AskedQueue, ended: "asyncio.Future[Any]") -> AgentRequest | None:
    """None when `ended` is done first."""
    waiting = asyncio.ensure_future(asked.get())
    await asyncio.wait({waiting, ended}, return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    return None


class Exchange:
    """The requests of one agent, each answered by one message. tools: of the first request, as JSON schemas. asked: the
    queue of its episode, which its agents share."""

    def __init__(self, asked: AskedQueue | None = None) -> None:
        self.tools: list[dict[str, Any]] = []
        self._asked = AskedQueue() if asked is None else asked
        self._waiting: asyncio.Future[Message] | None = None
        self._known: list[Any] = []

    async def ask(self, body: dict[str, Any]) -> Message:
        """For the agent's side: what the model says to a request."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(AgentRequest(self, body, answer))
        return await answer

    def answer(self, message: Message) -> None:
        """For the model's side: its message, to the request that was taken last."""
        if self._waiting is None or self._waiting.done():
            raise ComponentError("the agent has given up the request that this message answers")
        self._waiting.set_result(message)

    async def next(self, ended: "asyncio.Future[Any]") -> list[Message] | None:
        """What the next request adds to the conversation; None when `ended` is done first.

        Raises ComponentError for a request that does not go on from the one before."""
        request = await next_request(self._asked, ended)
        return None if request is None else self.take(request)

    def take(self, request: AgentRequest) -> list[Message]:
        """What one of its requests adds to the conversation. Raises as `next` does."""
        body, self._waiting = request.body, request.answer
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ComponentError(f"the agent's request has no messages: {body!r:.200}")
        if not self._known:
            self.tools = body.get("tools") or []
        known, self._known = self._known, messages
        if not known:
            return [_as_given(one) for one in messages]
        if messages[: len(known)] != known or messages[len(known)].get("role") != "assistant":
            raise ComponentError(
                "the agent has rewritten its conversation, and an episode's only goes on: turn compaction off, "
                "or drive it through the gateway"
            )
        return [_as_given(one) for one in messages[len(known) + 1 :]]


def _as_given(message: Any) -> Message:
    """Text parts as one text; what is None is not there."""
    kept = {key: value for key, value in message.items() if value is not None}
    content = kept.get("content", "")
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        content = "".join(part["text"] for part in content)
    return {**kept, "content": content}


class ChatEndpoint:
    """Serves `POST /v1/chat/completions` on loopback to the agents of many episodes; each names its own by a header.

    header: its name. Exchanges are in `exchanges`, by what that header says."""

    def __init__(self, header: str) -> None:
        self.exchanges: dict[str, Exchange] = {}
        self._header = header
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """The base URL."""
        application = web.Application(client_max_size=MOST_BYTES)
        application.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/v1"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        exchange = self.exchanges.get(request.headers.get(self._header, ""))
        if exchange is None:
            return web.json_response({"error": {"message": "no such episode"}}, status=404)
        body = await request.json()
        message = await exchange.ask(body)
        return _streamed(message) if body.get("stream") else web.json_response(_completion(message, "message"))


def _completion(message: Message, key: str) -> dict[str, Any]:
    """key: `message`, or `delta` of a stream."""
    calls = [
        {**call, "index": place, "function": {**call["function"], "arguments": _text(call["function"]["arguments"])}}
        for place, call in enumerate(message.get("tool_calls") or [])
    ]
    said = {"role": "assistant", "content": message.get("content", ""), **({"tool_calls": calls} if calls else {})}
    kind = "chat.completion" if key == "message" else "chat.completion.chunk"
    choice = {"index": 0, key: said, "finish_reason": "tool_calls" if calls else "stop", "logprobs": None}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    made = {"id": "chatcmpl-episode", "object": kind, "created": int(time.time()), "model": "policy"}
    return {**made, "choices": [choice], "usage": usage}


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def _streamed(message: Message) -> web.Response:
    """The whole message as one event."""
    text = f"data: {json.dumps(_completion(message, 'delta'))}\n\ndata: [DONE]\n\n"
    return web.Response(text=text, content_type="text/event-stream")
