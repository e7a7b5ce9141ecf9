"""An HTTP server with vLLM's routes and shapes, and no model: release 0.32, as measured and as read.

A request's i-th token is `token(i)` with the log-prob `logprob(i)`, whatever the prompt; a test says how many are
sampled (`sample`). The habits that bite, each on demand: a NaN comes as -9999, a stream breaks or goes silent, a verb
fails after it did its work, a pause stays.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from safetensors import safe_open
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from support.engines.fake_server import Reset, likeliest, logprob, spans_of, token

from streamrl.engines.server.engine import ServerEngine, ServerLimits
from streamrl.engines.server.http import Http
from streamrl.engines.server.process.private_folder import make_private_folder
from streamrl.engines.server.server import Server
from streamrl.engines.server.vllm.contract import VllmContract
from streamrl.models.grammars import Grammars
from streamrl.types import Version

LIMIT_S = 20.0
METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="model"} 3.0
vllm:num_requests_waiting{engine="0",model_name="model"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="model"} 0.25
"""


@dataclass
class FakeRequest:
    """`labels`: of the weights that sampled each token so far. `chunks`: on their way to the client; None breaks the
    connection."""

    body: dict[str, Any]
    labels: list[str] = field(default_factory=list)
    chunks: "asyncio.Queue[dict[str, Any] | None]" = field(default_factory=asyncio.Queue)
    sent: int = 0


class FakeVllm:
    """What a test sets before, and reads after.

    answers: by path, (status, JSON) in place of the route's own. after: by path, the same once the route has done its
    work. hung: paths that never answer. odd: changes a choice on its way out. refused: why
    weights are not taken. broken_by: (status, JSON) in place of a load, and what the two workers hold then.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.running: dict[str, FakeRequest] = {}
        self.seen: list[str] = []
        self.over: list[str] = []
        self.connections: list[str | None] = []
        self.loaded: list[tuple[list[str], int]] = []
        self.label = "default"
        self.held: list[str | None] = ["default", "default"]
        self.paused = self.at_once = False
        self.version = "0.32.0+cpu"
        self.metrics = METRICS
        self.answers: dict[str, tuple[int, Any]] = {}
        self.after: dict[str, tuple[int, Any]] = {}
        self.hung: set[str] = set()
        self.refused: str | None = None
        self.broken_by: tuple[int, Any, list[str | None]] | None = None
        self.odd: Callable[[dict[str, Any]], None] = lambda choice: None
        self._arrived = threading.Condition()

    # ---- for the test's thread

    def paths(self) -> list[str]:
        return [path for path, _ in self.calls]

    def wait_for(self, count: int) -> None:
        """Until so many requests have come, from the start on."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.seen) >= count, LIMIT_S), self.seen

    def wait_for_end_of(self, rid: str) -> None:
        """Until the answer to a request has come to its end, or its connection was closed."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: rid in self.over, LIMIT_S), self.over

    def sample(self, count: int = 1, *names: str) -> None:
        """Sample so many tokens of each request, or of those named, in one piece."""
        self._do(lambda: [self._sample(name, count) for name in names or list(self.running)])

    def end(self, name: str, reason: str) -> None:
        self._do(lambda: self._finish(name, reason))

    def say(self, name: str, chunk: dict[str, Any] | None) -> None:
        """Send this in the answer of a request; None breaks the connection."""
        self._do(lambda: self.running[name].chunks.put_nowait(chunk))

    def _do(self, work: Callable[[], Any]) -> None:
        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self.loop).result(LIMIT_S)

    # ---- in the server's loop

    def _sample(self, name: str, count: int) -> None:
        request, sampling = self.running[name], self.running[name].body["sampling_params"]
        reason = None
        for _ in range(0 if self.paused else count):
            request.labels.append(self.label)
            if token(len(request.labels) - 1) in sampling["stop_token_ids"]:
                reason = "stop"
            elif len(request.labels) == sampling["max_tokens"]:
                reason = "length"
            if reason:
                break
        self._tell(name, reason)

    def _finish(self, name: str, reason: str) -> None:
        self._tell(name, reason)

    def _tell(self, name: str, reason: str | None) -> None:
        request = self.running[name]
        first, request.sent = request.sent, len(request.labels)
        places = range(first, request.sent)
        most = request.body["sampling_params"]["logprobs"]
        content = [
            {"token_id": token(i), "logprob": logprob(i), "rank": 1, "top_logprobs": _top(i, most)} for i in places
        ]
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": {"content": content},
            "finish_reason": reason,
            "token_ids": [token(i) for i in places],
            "weight_versions": None,
        }
        if reason is not None:
            choice["weight_versions"] = spans_of(request.labels)
            del self.running[name]
        self.odd(choice)
        given = request.body["request_id"]
        request.chunks.put_nowait({"request_id": f"generate-tokens-{given}", "choices": [choice]})

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        self.connections.append(request.headers.get("connection"))
        name = name_of(body["request_id"])
        self.calls.append(("/inference/v1/generate", body))
        if refusal := self._instead("/inference/v1/generate"):
            return refusal
        if not body.get("stream"):
            return JSONResponse({"choices": [], "prompt_logprobs": _of_prompt(body)})
        mine = self.running[name] = FakeRequest(body)
        with self._arrived:
            self.seen.append(name)
            self._arrived.notify_all()
        if self.at_once:
            self._sample(name, body["sampling_params"]["max_tokens"])
        return StreamingResponse(self._stream(mine), media_type="text/event-stream")

    async def _stream(self, request: FakeRequest) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._chunks(request):
                yield chunk
        finally:
            with self._arrived:
                self.over.append(request.body["request_id"])
                self._arrived.notify_all()

    async def _chunks(self, request: FakeRequest) -> AsyncIterator[bytes]:
        while (chunk := await request.chunks.get()) is not None:
            yield f"data: {json.dumps(chunk)}\n\n".encode()
            if "error" in chunk or chunk["choices"][0].get("finish_reason"):
                yield b"data: [DONE]\n\n"
                return
        raise Reset

    async def verb(self, request: Request) -> Response:
        """Every other route."""
        path, text = request.url.path, await request.body()
        body = json.loads(text) if text else dict(request.query_params)
        self.calls.append((path, body))
        if path in self.hung:
            await asyncio.Event().wait()
        if refusal := self._instead(path):
            return refusal
        answer = getattr(self, "_" + path[1:])(body)
        if path in self.after:
            status, told = self.after[path]
            return JSONResponse(told, status)
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    def _instead(self, path: str) -> Response | None:
        status, told = self.answers.get(path, (0, None))
        return JSONResponse(told, status) if status else None

    def _health(self, body: Any) -> Any:
        return Response()

    def _version(self, body: Any) -> Any:
        return {"version": self.version}

    def _metrics(self, body: Any) -> Any:
        return PlainTextResponse(self.metrics)

    def _is_paused(self, body: Any) -> Any:
        return {"is_paused": self.paused}

    def _weight_info(self, body: Any) -> Any:
        return {"weight_version": self.label}

    def _pause(self, body: Any) -> Any:
        self.paused = True
        return {"status": "paused"}

    def _resume(self, body: Any) -> Any:
        self.paused = False
        return {"status": "resumed"}

    def _update_weight_version(self, body: Any) -> Any:
        self.label = body["new_version"]
        return {"success": True, "new_version": self.label}

    def _abort_requests(self, body: Any) -> Any:
        for name in [name_of(one) for one in body["request_ids"] if one.startswith("generate-tokens-")]:
            if name in self.running:
                self._finish(name, "abort")
        return {"status": "aborted", "aborted": len(body["request_ids"])}

    def _collective_rpc(self, body: Any) -> Any:
        if body["method"] == "streamrl_holds":
            return {"results": self.held}
        assert self.paused, "weights that change while a step runs end the engine"
        folder, label = Path(body["args"][0]), body["args"][1]
        (file,) = folder.iterdir()
        with safe_open(file, "numpy") as tensors:
            self.loaded.append((sorted(tensors.keys()), folder.stat().st_mode & 0o777))
        if self.refused is not None:
            return {"results": [self.refused, self.refused]}
        if self.broken_by is not None:
            status, told, self.held = self.broken_by
            return JSONResponse(told, status)
        self.held = [label, label]
        return {"results": [None, None]}

    # ---- its life

    @contextmanager
    def served(self, socket: Path) -> Iterator["FakeVllm"]:
        """Listen on a Unix socket, in a thread, until the end of the block."""
        routes = [Route("/inference/v1/generate", self.generate, methods=["POST"])]
        routes += [Route("/{verb}", self.verb, methods=["GET", "POST"])]
        config = uvicorn.Config(Starlette(routes=routes), uds=str(socket), log_level="critical", lifespan="off")
        server, up = uvicorn.Server(config), threading.Event()

        async def serve() -> None:
            self.loop = asyncio.get_running_loop()
            task = asyncio.create_task(server.serve())
            while not server.started:  # noqa: ASYNC110 - it gives no event
                await asyncio.sleep(0.005)
            up.set()
            await task

        thread = threading.Thread(target=asyncio.run, args=[serve()], name="fake vllm")
        thread.start()
        try:
            assert up.wait(LIMIT_S)
            yield self
        finally:
            server.force_exit = server.should_exit = True
            thread.join(LIMIT_S)


def _top(index: int, most: int) -> list[dict[str, Any]]:
    """As the route tells them: the sampled token first, then by rank, one of them at least."""
    told = dict([(token(index), logprob(index)), *likeliest(index, most)])
    entries = [{"token_id": token_id, "logprob": one, "rank": None} for token_id, one in told.items()]
    return entries[: max(1, most)]


def _of_prompt(body: dict[str, Any]) -> list[dict[str, Any] | None]:
    """Of a prompt of the ids that `token` gives."""
    rows = []
    for place in range(1, len(body["token_ids"])):
        told = dict([(token(place), logprob(place)), *likeliest(place, body["sampling_params"]["prompt_logprobs"])])
        rows.append({str(one): {"logprob": value, "rank": 1, "decoded_token": None} for one, value in told.items()})
    return [None, *rows]


def name_of(rid: str) -> str:
    """The test's name of a request, which a contract sends under a name that is new each time."""
    return rid.split(":")[-1]


@contextmanager
def fake_engine(
    fake: FakeVllm,
    *,
    slots: int = 4,
    silence_s: float = LIMIT_S,
    update_s: float = LIMIT_S,
    grammars: Grammars | None = None,
) -> Iterator[ServerEngine]:
    """An engine over a fake server, which serves version 0.0."""
    folder = make_private_folder("streamrl-test")
    fake.label, fake.held = "0.0", ["0.0", "0.0"]
    with fake.served(folder / "socket"):
        server = Server("vllm", VllmContract(Http(socket=folder / "socket")), folder, None)
        limits = ServerLimits(
            slots=slots,
            max_length=200,
            vocab_size=500,
            kv_bytes=1000,
            silence_s=silence_s,
            update_s=update_s,
            grammars=grammars,
        )
        engine = ServerEngine(server, Version(0, 0), limits)
        try:
            yield engine
        finally:
            engine.close()
