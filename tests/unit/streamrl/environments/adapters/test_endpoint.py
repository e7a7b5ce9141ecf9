"""The endpoint behind which an episode's model answers an agent: requests, answers, and what it does not take."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from streamrl.environments.adapters.endpoint import ChatEndpoint, Exchange
from streamrl.errors import ComponentError

HEADER = "X-Session-ID"
ASK = {"role": "user", "content": "1+1?"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def said(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


async def asked(exchange: Exchange, messages: Any, **body: Any) -> Any:
    """A request of the agent's, begun; and what `next` gives for it."""
    request = asyncio.create_task(exchange.ask({"messages": messages, **body}))
    never = asyncio.get_running_loop().create_future()
    return request, await exchange.next(never)


async def test_each_request_adds_to_the_conversation() -> None:
    exchange = Exchange()
    system = {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]}
    request, opening = await asked(exchange, [system, ASK], tools=[TOOL])
    assert opening == [{"role": "system", "content": "Be brief."}, ASK]
    assert exchange.tools == [TOOL]
    exchange.answer(said("2"))
    assert await request == said("2")
    more = {"role": "user", "content": "And 2+2?", "name": None}
    request, added = await asked(exchange, [system, ASK, said("as the agent has it"), more])
    assert added == [{"role": "user", "content": "And 2+2?"}]
    request.cancel()


@pytest.mark.parametrize("messages", [[ASK], [{"role": "user", "content": "summary"}, said("2"), ASK], [ASK, ASK]])
async def test_a_conversation_that_is_rewritten_is_refused(messages: list[Any]) -> None:
    exchange = Exchange()
    request, _ = await asked(exchange, [ASK])
    exchange.answer(said("2"))
    await request
    if messages == [ASK]:
        messages = [ASK, {"role": "user", "content": "no answer between"}]
    with pytest.raises(ComponentError, match="has rewritten its conversation"):
        await asked(exchange, messages)


async def test_an_agent_that_ends_asks_no_more() -> None:
    ended = asyncio.get_running_loop().create_future()
    ended.set_result(None)
    assert await Exchange().next(ended) is None


async def test_a_message_that_nobody_waits_for_is_told() -> None:
    exchange = Exchange()
    with pytest.raises(ComponentError, match="has given up the request"):
        exchange.answer(said("2"))
    request, _ = await asked(exchange, [ASK])
    request.cancel()
    await asyncio.wait({request})
    with pytest.raises(ComponentError, match="has given up the request"):
        exchange.answer(said("2"))


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": "1+1?"}])
async def test_a_request_without_messages_is_refused(body: dict[str, Any]) -> None:
    exchange = Exchange()
    request = asyncio.create_task(exchange.ask(body))
    with pytest.raises(ComponentError, match="has no messages"):
        await exchange.next(asyncio.get_running_loop().create_future())
    request.cancel()


async def test_over_http_whole_and_in_a_stream() -> None:
    endpoint = ChatEndpoint(HEADER)
    url = await endpoint.start()
    exchange = endpoint.exchanges["one"] = Exchange()

    async def post(session: str, **body: Any) -> tuple[int, str]:
        given = {"model": "m", "messages": [ASK], **body}
        session_of = aiohttp.ClientSession(headers={HEADER: session})
        async with session_of as client, client.post(f"{url}/chat/completions", json=given) as answer:
            return answer.status, await answer.text()

    async def model(*messages: dict[str, Any]) -> None:
        for message in messages:
            await exchange.next(asyncio.get_running_loop().create_future())
            exchange.answer(message)
            exchange._known = []

    (status, text), _ = await asyncio.gather(post("one"), model(said("", tool_calls=[CALL])))
    choice = json.loads(text)["choices"][0]
    assert (status, choice["finish_reason"]) == (200, "tool_calls")
    assert choice["message"]["tool_calls"] == [
        {"id": "c", "type": "function", "index": 0, "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]
    (status, text), _ = await asyncio.gather(post("one", stream=True), model(said("2")))
    first, done = text.strip().split("\n\n")
    assert json.loads(first.removeprefix("data: "))["choices"][0]["delta"] == said("2")
    assert (status, done) == (200, "data: [DONE]")
    assert (await post("other"))[0] == 404
    await endpoint.close()
