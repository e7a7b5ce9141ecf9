"""What stands before the routes, without a socket: bodies that do not come, clients that do not read."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from streamrl.gateway.auth import Doorkeeper, all_scopes_token
from streamrl.services.gateway.guard import Guard, Patience

KEY = b"k" * 32
SHORT = 0.01
"""Seconds of a deadline that passes: nothing else ends what is waited for."""


async def never() -> None:
    await asyncio.Event().wait()


async def said(
    app: Any, *, receive: Callable[[], Any], send: Callable[[Any], Any] | None = None, token: str | None = None
) -> list[Any]:
    """What reached the client of a guarded application."""
    sent: list[Any] = []
    counted: list[tuple[str, int]] = []

    async def take(message: Any) -> None:
        if send is not None:
            await send(message)
        sent.append(message)

    guard = Guard(
        app,
        Doorkeeper(KEY),
        max_body_bytes=10,
        max_requests=1,
        count=lambda *one: counted.append(one),
        patience=Patience(body_s=SHORT, send_s=SHORT),
    )
    told = {"host": "localhost", "authorization": f"Bearer {token or all_scopes_token(KEY)}"}
    headers = [(name.encode(), value.encode()) for name, value in told.items()]
    await guard({"type": "http", "path": "/v1/completions", "method": "POST", "headers": headers}, receive, take)
    assert guard._running == 0
    return sent


def code_of(sent: list[Any]) -> tuple[int, str]:
    return sent[0]["status"], json.loads(sent[1]["body"])["error"]["code"]


async def whole_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"x", "more_body": False}


async def unreached(*_: Any) -> None:
    raise AssertionError("the application was reached")


async def test_a_body_that_does_not_come_is_given_up() -> None:
    assert code_of(await said(unreached, receive=never)) == (408, "body_too_slow")


async def test_of_a_body_without_a_length_no_more_is_taken_than_may_be() -> None:
    taken = []

    async def endless() -> dict[str, Any]:
        taken.append(4)
        return {"type": "http.request", "body": b"xxxx", "more_body": True}

    assert code_of(await said(unreached, receive=endless)) == (413, "body_too_long")
    assert sum(taken) == 12


async def test_from_whom_the_doorkeeper_refuses_nothing_is_read() -> None:
    async def read() -> dict[str, Any]:
        raise AssertionError("the body was read")

    assert code_of(await said(unreached, receive=read, token="wrong")) == (401, "invalid_api_key")


async def test_a_client_that_reads_nothing_is_left_and_what_was_made_for_it_ends() -> None:
    ended = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
        finally:
            ended.append("the stream")

    async def full(message: Any) -> None:
        if message["type"] == "http.response.body":
            await never()

    sent = await said(app, receive=whole_body, send=full)
    assert [message["type"] for message in sent] == ["http.response.start"]
    assert ended == ["the stream"]


async def test_the_application_gets_the_body_once_and_then_hears_that_the_client_left() -> None:
    messages = iter([{"type": "http.request", "body": b"abc", "more_body": False}, {"type": "http.disconnect"}])
    heard = []

    async def receive() -> Any:
        return next(messages)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        heard.extend([await receive(), await receive()])

    await said(app, receive=receive)
    assert heard == [{"type": "http.request", "body": b"abc", "more_body": False}, {"type": "http.disconnect"}]
