"""`judge` and `http` against a real server: verdicts, retries, what a server that fails leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from streamrl.rewards.base import to_score
from streamrl.rewards.verifiers.endpoint import Endpoint, EndpointError
from streamrl.rewards.verifiers.http import http
from streamrl.rewards.verifiers.judge import judge
from streamrl.types import ScoreStatus

Answer = Callable[[dict[str, Any], int], web.Response]


class Server:
    """Answers by a function of the request's body and its number, and keeps what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(await request.json())
        self.headers.append(dict(request.headers))
        return self._answer(self.asked[-1], len(self.asked))


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Server]:
    server = Server(answer)
    app = web.Application()
    app.router.add_post("/{path:.*}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def says(text: str) -> web.Response:
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return web.json_response({"choices": [{"message": {"content": text}}], "usage": usage})


async def test_a_judge_is_asked_with_question_reference_and_answer_and_its_verdict_and_cost_are_kept() -> None:
    def grade(body: dict[str, Any], _: int) -> web.Response:
        good = "Paris" in body["messages"][1]["content"].split("Answer to grade:")[1]
        return says(f'Sure: {{"score": {10 if good else 2}, "reason": "it is so"}}')

    async with serving(grade) as server:
        verdicts = await judge(
            ["Paris", "London"],
            ["Capital of France?", [{"role": "user", "content": "Capital?"}]],
            ["Paris", "Paris"],
            base_url=server.url,
            model="grader",
            max_score=10,
            price_in=1.0,
            price_out=5.0,
        )
    scores = [to_score(verdict) for verdict in verdicts]
    assert [score.reward for score in scores] == [1.0, 0.2]
    assert scores[0].components == {"score": 1.0, "judge_tokens": 110.0, "judge_cost": pytest.approx(150e-6)}
    assert json.loads(scores[0].info) == {"reason": "it is so"}
    bodies = sorted(body["messages"][1]["content"] for body in server.asked)
    assert bodies[0] == "Question:\nCapital of France?\n\nReference:\nParis\n\nAnswer to grade:\nParis"
    assert bodies[1].startswith("Question:\nuser: Capital?")
    assert {body["response_format"]["type"] for body in server.asked} == {"json_schema"}


@pytest.mark.parametrize(
    "text", ["", "no JSON", '{"reason": "x"}', '{"score": "high"}', '{"score": 7}', '{"score": -1}', "[]"]
)
async def test_a_judge_without_a_verdict_gives_no_score_and_never_a_zero(text: str) -> None:
    async with serving(lambda body, _: says(text)) as server:
        (verdict,) = await judge(["a"], ["q"], base_url=server.url, model="grader")
    score = to_score(verdict)
    assert score.status is ScoreStatus.FAILED
    assert "the judge gave" in score.reason


async def test_the_key_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    async with serving(lambda body, _: says('{"score": 1}')) as server:
        await judge(["a"], ["q"], base_url=f"{server.url}/v1/", model="grader", api_key_env="MY_KEY")
        assert server.headers[0]["Authorization"] == "Bearer secret"


async def test_rate_limits_and_server_errors_are_tried_again_and_a_wrong_request_is_not() -> None:
    def busy(body: dict[str, Any], number: int) -> web.Response:
        if number == 1:
            return web.Response(status=429, headers={"Retry-After": "0"})
        return web.Response(status=503, headers={"Retry-After": "0"}) if number == 2 else says('{"score": 1}')

    async with serving(busy) as server:
        (verdict,) = await judge(["a"], ["q"], base_url=server.url, model="grader", retries=2)
        assert to_score(verdict).reward == 1.0
        assert len(server.asked) == 3
    async with serving(lambda body, _: web.Response(status=401, text="no such key")) as server:
        (verdict,) = await judge(["a"], ["q"], base_url=server.url, model="grader")
        assert "401: no such key" in to_score(verdict).reason
        assert len(server.asked) == 1


async def test_a_server_that_stays_away_gives_a_failure_by_its_address() -> None:
    async with serving(lambda body, _: says("")) as server:
        url = server.url
    (verdict,) = await judge(["a"], ["q"], base_url=url, model="grader", retries=0)
    assert url in to_score(verdict).reason


async def test_no_more_requests_are_under_way_than_may_be() -> None:
    most = now = 0
    both = asyncio.Event()

    class Slow(Server):
        async def handle(self, request: web.Request) -> web.Response:
            nonlocal most, now
            now += 1
            most = max(most, now)
            if now == 2:
                both.set()
            await both.wait()
            now -= 1
            return web.json_response({})

    server = Slow(lambda body, _: web.json_response({}))
    app = web.Application()
    app.router.add_post("/", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        async with Endpoint(url, {}, concurrency=2, retries=0, timeout_s=60) as endpoint:
            await asyncio.gather(*(endpoint.post({}) for _ in range(10)))
    finally:
        await runner.cleanup()
    assert most == 2


async def test_an_answer_that_is_not_json_is_said() -> None:
    async with (
        serving(lambda body, _: web.Response(text="<html>")) as server,
        Endpoint(server.url, {}, concurrency=1, retries=0, timeout_s=60) as endpoint,
    ):
        with pytest.raises(EndpointError, match="the answer is not JSON"):
            await endpoint.post({})


async def test_a_reward_server_gets_the_rows_and_gives_a_score_for_each() -> None:
    def score(body: dict[str, Any], _: int) -> web.Response:
        scores = [
            None if item["answer"] is None else float(item["completion"] == item["answer"]) for item in body["items"]
        ]
        return web.json_response({"scores": scores})

    async with serving(score) as server:
        given = await http(["4", "5", "6"], ["2+2=", "2+3=", "?"], [], url=server.url, answer=["4", "4", None])
    assert given == [1.0, 0.0, None]
    assert server.asked[0]["items"][0] == {"prompt": "2+2=", "completion": "4", "answer": "4"}


@pytest.mark.parametrize("answer", [{"scores": [1.0, 2.0]}, {"values": [1.0]}, [1.0], "1.0"])
async def test_a_reward_server_that_answers_in_another_form_is_told(answer: Any) -> None:
    async with serving(lambda body, _: web.json_response(answer)) as server:
        with pytest.raises(ValueError, match=r'not \{"scores": \[...\]\} with 1 entries'):
            await http(["4"], ["2+2="], [], url=server.url)
