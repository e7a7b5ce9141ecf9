"""Requests that no honest client sends, to the real gateway over real sockets: each is answered as documented.

`FAULT_SCALE=1` tries 20,000; the default is a short form of it. `SEED` replays, and a failure names its request.
"""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from support.faults.fault_scale import SEED, replay, scaled
from support.gateway.local_gateway import LocalGateway, local_gateway, until
from support.gateway.raw_http import Answer, answers, begins_events, exchange, taken_lines
from support.gateway.request_bodies import BODIES
from support.gateway.request_mutations import MOST_BYTES, mutated
from support.gateway.sent_request import LEAVES, WHOLE, Sent, honest_headers

from streamrl.config.schema.run import GatewayConfig
from streamrl.gateway.auth import Scope, all_scopes_token
from streamrl.gateway.refusal import CODES
from streamrl.services.gateway.guard import Patience

COUNT = max(1000, scaled(20_000))
"""Of fewer, by chance, none may be answered with 401."""
AT_ONCE = 8
TRIES = 30
"""Of honest bodies: many ask for what the gateway under test has not, such as tools or a response before."""
OF_WHAT_IS_THERE = {"/api/prompts/cancel", "/api/sessions/a1/reward"}
"""Routes that answer 404 here: there is nothing yet of what they name."""
LIMIT_S = 60.0
"""Seconds after which an answer counts as one that does not come."""
SHORT = Patience(body_s=0.2, send_s=30.0, idle_s=0.2)
OF_REQUESTS = ("RequestResponseCycle", "Guard", "Answering", "EventStream", "PromptStream", "_gone", "_until_gone")
"""What the tasks begin with that answer requests."""
NOT_HTTP = b"Invalid HTTP request received."
"""What the HTTP server itself says of what is no HTTP."""


@pytest.mark.timeout(300 + COUNT // 10)
async def test_no_request_whatever_breaks_the_gateway_or_is_answered_without_a_known_code(tmp_path: Path) -> None:
    settings = GatewayConfig(enabled=True, stream_weights={"train": 0.0}, max_body_bytes=MOST_BYTES)
    async with local_gateway(tmp_path, most=6, gateway=settings, trains=True, owned=True, patience=SHORT) as gateway:
        await still_answers(gateway)
        statuses: dict[int, int] = {}
        places = iter(range(COUNT))
        async with asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(client(gateway, places, statuses))
        await still_answers(gateway)
        await nothing_is_left(gateway)
    # Of everything some: else nothing was mutated, or nothing got as far as a route.
    assert min(statuses.get(status, 0) for status in (200, 400, 401, 403, 404, 405)) > COUNT // 500, statuses


async def test_the_bodies_that_mutations_begin_with_reach_their_routes(tmp_path: Path) -> None:
    settings = GatewayConfig(enabled=True, stream_weights={"train": 0.0}, max_body_bytes=MOST_BYTES)
    chance = random.Random(SEED)
    async with local_gateway(tmp_path, most=6, gateway=settings, trains=True, owned=True) as gateway:
        token = gateway.token().encode()
        for path in sorted({*BODIES} - OF_WHAT_IS_THERE):
            tries = [Sent(b"POST", path.encode(), honest_headers(token), BODIES[path](chance)) for _ in range(TRIES)]
            statuses = [one.status for sent in tries for one in await answered(gateway, sent, 0)]
            assert 200 in statuses, (path, statuses)


async def client(gateway: LocalGateway, places: Any, statuses: dict[int, int]) -> None:
    for place in places:
        sent = mutated(SEED, place, tokens_of(gateway))
        for answer in await answered(gateway, sent, place):
            statuses[answer.status] = statuses.get(answer.status, 0) + 1


async def answered(gateway: LocalGateway, sent: Sent, place: int) -> list[Answer]:
    """The answers to one request, of which none is wrong."""
    said = f"{replay(place)}: {sent}"
    try:
        async with asyncio.timeout(LIMIT_S):
            ends = {"leaves": sent.end == LEAVES, "enough": sent.prompts, "endless": sent.endless}
            data = await exchange(gateway.port, sent.raw, **ends)
    except TimeoutError:
        pytest.fail(f"no end of the answer to {said}")
    found = answers(data)
    faults = [fault for answer in found if (fault := fault_of(answer, sent))]
    cut = (sent.prompts and taken_lines(data) >= sent.prompts) or (sent.endless and begins_events(data))
    if found and not found[-1].whole and not cut and sent.end == WHOLE and sent.method != b"HEAD":
        faults.append("half an answer")
    if not found and sent.end == WHOLE and len(sent.body) <= MOST_BYTES and not sent.after:
        faults.append("no answer")
    if any(token.encode() in data for token in tokens_of(gateway).values()):
        faults.append("a token is told")
    assert not faults, f"{faults} to {said}: {data[:2000]!r}"
    return found


def fault_of(answer: Answer, sent: Sent) -> str:
    """What is wrong with an answer; "" when nothing is."""
    if answer.status < 400 or sent.method == b"HEAD":
        return "" if answer.status in (200, *CODES) else f"status {answer.status}"
    if (answer.status, answer.body) == (400, NOT_HTTP):
        return ""
    if answer.status >= 500 or answer.content_type != "application/json" or not answer.whole:
        return f"status {answer.status}, {answer.content_type}"
    told = json.loads(answer.body)
    error = told["error"]
    # Anthropic's clients look for what it is before they look at the error.
    outside = {"error", "type"} if sent.target.startswith(b"/v1/messages") else {"error"}
    shaped = set(told) == outside and set(error) == {"message", "type", "param", "code"} and error["message"]
    return "" if shaped and error["code"] in CODES.get(answer.status, ()) else f"{answer.status} {error}"


def tokens_of(gateway: LocalGateway) -> dict[str, str]:
    """By what they are good for; that of another run for nothing."""
    scopes = {scope.value: gateway.token(scope) for scope in Scope}
    return {"all": gateway.token(), **scopes, "another run": all_scopes_token(b"x" * 32)}


async def still_answers(gateway: LocalGateway) -> None:
    status, answer = await gateway.complete(max_tokens=4, n=2)
    assert (status, len(answer["choices"])) == (200, 2), answer
    assert (await gateway.ask("/readyz"))[0] == 200


async def nothing_is_left(gateway: LocalGateway) -> None:
    """No request, no guest, no task, no connection of those that came; and all that the run does goes on."""
    await gateway.idle()
    guard, server = gateway.actor._server.config.app, gateway.actor._server.server_state
    await until(lambda: not server.tasks)
    assert guard._running == 0
    assert gateway.actor._pool.running == 0
    assert gateway.actor._pool._routes.owed == {"rollout-0": 0}
    await until(lambda: len(server.connections) <= 1)  # the client that asks whether it still answers has one
    working = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
    assert [name for name in working if name.startswith(OF_REQUESTS)] == []
    assert [work for work in gateway.works if work.done()] == []
