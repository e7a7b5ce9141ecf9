"""The level `remote`, against a server that runs programs for real and speaks SandboxFusion's protocol."""

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from streamrl.config.schema.run import RewardModelConfig
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ComponentError, ConfigError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.build import make_scorer
from streamrl.sandbox.program import Ending, Finished, Limits, Program
from streamrl.sandbox.remote import RemoteSandbox
from streamrl.sandbox.sandbox import Sandbox, make_sandbox


class Server:
    """answer: what it says instead of running anything."""

    def __init__(self) -> None:
        self.answer: Any = None
        self.status = 200
        self.asked: list[dict[str, Any]] = []
        self._runs = Sandbox(SandboxConfig(level="namespaces"))
        self._runs.start()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self._ready.wait(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._runs.close()

    def _serve(self) -> None:
        application = web.Application()
        application.router.add_post("/run_code", self._run_code)
        runner = web.AppRunner(application)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _run_code(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self.answer is not None:
            return web.Response(text=self.answer, status=self.status)
        files = {name: base64.b64decode(data).decode() for name, data in body["files"].items()}
        program = Program(source=body["code"], stdin=body["stdin"].encode(), files=files)
        limits = Limits(time_s=body["run_timeout"], memory_bytes=body["memory_limit_MB"] * 2**20)
        return web.json_response(_told(await self._runs.run(program, limits)))


def _told(finished: Finished) -> dict[str, Any]:
    late = finished.ending is Ending.TIME
    result = {
        "status": "TimeLimitExceeded" if late else "Finished",
        "execution_time": finished.wall_s,
        "return_code": None if late else finished.exit_code,
        "stdout": finished.stdout.decode(),
        "stderr": finished.stderr.decode(),
    }
    return {"status": "Success" if finished.succeeded else "Failed", "message": "", "run_result": result, "files": {}}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def config(server: Server) -> SandboxConfig:
    server.answer, server.status = None, 200
    return SandboxConfig(level="remote", url=server.url, time_s=2.0)


def test_programs_run_there(config: SandboxConfig, server: Server) -> None:
    sandbox = make_sandbox(config)
    assert isinstance(sandbox, RemoteSandbox)
    assert sandbox.start() == "remote"
    program = Program(source="print(open('data').read(), input())", stdin=b"\xc3\xbc", files={"data": "x"})
    finished = asyncio.run(sandbox.run(program))
    assert (finished.stdout.decode(), finished.succeeded) == ("x \u00fc\n", True)
    assert server.asked[-1]["memory_limit_MB"] == 512
    assert asyncio.run(sandbox.run(Program(source="raise SystemExit(3)"))).exit_code == 3
    assert asyncio.run(sandbox.run(Program(source="while True: pass"))).ending is Ending.TIME
    little = Limits(output_bytes=10)
    assert asyncio.run(sandbox.run(Program(source="print('x' * 100)"), little)).ending is Ending.OUTPUT


def test_the_reward_of_a_program_and_what_it_refuses(config: SandboxConfig) -> None:
    scorer = make_scorer("code", RewardModelConfig(), config)

    def score(**row: Any) -> Any:
        code = "def twice(number): return 2 * number\nif __name__ == '__main__': print(twice(int(input())))"
        (found,) = scorer.score([RewardItem(prompt="", completion=code, finish_reason="stop", payload=json.dumps(row))])
        return found

    assert score(tests=[{"input": "2", "output": "4"}]).reward == 1.0
    assert score(tests={"inputs": [[2], [3]], "outputs": [4, 6], "fn_name": "twice"}).reward == 1.0
    assert score(tests={"inputs": [[2]], "outputs": [5], "fn_name": "twice"}).reward == 0.0
    refused = score(tests=["assert twice(2) == 4"])
    assert refused.reward is None
    assert "set sandbox.level to a local one" in refused.reason
    scorer.close()


@pytest.mark.parametrize(
    ("answer", "status", "told"),
    [
        ("no", 200, "answers in another form"),
        ("busy", 503, "status 503: b'busy'"),
        ('{"status": "SandboxError", "message": "no worker"}', 200, "the server says SandboxError: no worker"),
        (
            '{"status": "Success", "run_result": {"status": "Finished", "stdout": "41"}}',
            200,
            "6 .* 7. gave b'41'",
        ),
    ],
)
def test_a_server_that_runs_nothing_is_refused(
    config: SandboxConfig, server: Server, answer: str, status: int, told: str
) -> None:
    server.answer, server.status = answer, status
    with pytest.raises(ConfigError, match=told):
        make_sandbox(config).start()


def test_a_server_that_is_not_there_and_what_cannot_be_asked(config: SandboxConfig) -> None:
    with pytest.raises(ConfigError, match="ClientConnectorError"):
        make_sandbox(SandboxConfig(level="remote", url="http://127.0.0.1:1")).start()
    with pytest.raises(ComponentError, match="no arguments"):
        asyncio.run(make_sandbox(config).run(Program(source="", arguments=("a",))))
