"""An HTTP server with SGLang's routes, shapes and bad habits, and no model: release 0.5.23, as measured and as read.

A request's i-th token is `token(i)` with the log-prob `logprob(i)`, whatever the prompt. The habits that bite:
* an abort ends every request whose name begins with the one given, and is lost for one not yet scheduled;
* an update in place with `flush_cache` answers 400 although the weights changed, and `/model_info` does not know;
* errors come in three shapes, and inside a stream as HTTP 200.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.engines.fake_server import Reset, likeliest, logprob, spans_of, token

from streamrl.engines.server.http import Http
from streamrl.engines.server.sglang.contract import SglangContract

INFO = {
    "version": "0.5.23",
    "disable_overlap_schedule": True,
    "allow_auto_truncate": False,
    "speculative_algorithm": None,
    "dp_size": 1,
}


@dataclass
class FakeRequest:
    """`labels`: which weights sampled each token so far. ending: set when it has ended."""

    body: dict[str, Any]
    labels: list[str] = field(default_factory=list)
    ending: dict[str, Any] | None = None
    scheduled: bool = False


class FakeSglang:
    """What a test sets before, and reads after. `instead`: by path, an answer (status, JSON or text) for a route."""

    def __init__(self) -> None:
        self.address = ""
        self.calls: list[tuple[str, Any]] = []
        self.requests: dict[str, FakeRequest] = {}
        self.instead: dict[str, tuple[int, Any]] = {}
        self.info: dict[str, Any] = dict(INFO)
        self.incremental = True
        self.label = "default"
        self.paused = ""
        self.stale = False
        self.ending: dict[str, Any] = {"type": "length"}
        self.spans = True
        self.nan_at = -1
        self.reset_at = -1
        self.hangs_at = ""
        self.tokenizing = False
        self.held_at = -1
        self._known = "default"
        self._changed = asyncio.Condition()

    @property
    def routes(self) -> list[str]:
        """The verbs that came, in order."""
        return [route for route, _ in self.calls]

    def bodies(self, route: str) -> list[Any]:
        return [body for name, body in self.calls if name == route]

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait for something to have happened here."""
        async with self._changed:
            await self._changed.wait_for(ready)

    async def let_go(self) -> None:
        """End what `held_at`, `tokenizing` and `hangs_at` hold."""
        self.held_at, self.tokenizing, self.hangs_at = -1, False, ""
        await self._notify()

    def app(self) -> Starlette:
        own: dict[str, Callable[[Any], Awaitable[Response]]] = {
            "/generate": self._generate,
            "/abort_request": self._abort,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/update_weights_from_disk": self._update,
            "/model_info": self._model_info,
            "/server_info": self._server_info,
            "/ready": self._ready,
            "/v1/loads": self._loads,
        }
        return Starlette(
            routes=[Route(path, self._endpoint(path, verb), methods=["GET", "POST"]) for path, verb in own.items()]
        )

    def _endpoint(
        self, path: str, verb: Callable[[Any], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            content = await request.body()
            body = json.loads(content) if content else None
            self.calls.append((path, body))
            await self._notify()
            await self.until(lambda: self.hangs_at != path)
            if path in self.instead:
                status, words = self.instead[path]
                return JSONResponse(words, status) if not isinstance(words, str) else Response(words, status)
            response = await verb(body)
            await self._notify()
            return response

        return answer

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _generate(self, body: dict[str, Any]) -> Response:
        request = self.requests[body["rid"]] = FakeRequest(body)
        return StreamingResponse(self._events(request), media_type="text/event-stream")

    async def _events(self, request: FakeRequest) -> AsyncIterator[bytes]:
        await self.until(lambda: not self.paused and not self.tokenizing)
        request.scheduled = True
        wanted = request.body["sampling_params"]["max_new_tokens"]
        sent = 0
        while request.ending is None:
            count = len(request.labels)
            if count == self.reset_at:
                raise Reset
            if self._holds(request):
                await self.until(lambda: request.ending is not None or not self._holds(request))
                continue
            request.labels.append(self.label)
            if len(request.labels) == wanted:
                request.ending = self.ending
            elif len(request.labels) % 2 and len(request.labels) != self.held_at:
                continue  # chunks of two tokens
            yield self._chunk(request, sent)
            sent = len(request.labels)
            await self._notify()
        if sent < len(request.labels) or request.ending["type"] == "abort":
            yield self._chunk(request, sent)
        yield b"data: [DONE]\n\n"

    def _holds(self, request: FakeRequest) -> bool:
        return bool(self.paused) or len(request.labels) == self.held_at

    def _chunk(self, request: FakeRequest, sent: int) -> bytes:
        total = len(request.labels)
        first = sent if self.incremental else 0
        rows = [[None if i == self.nan_at else logprob(i), token(i), None] for i in range(first, total)]
        ids = [token(i) for i in range(first, total)]
        if self.incremental and not ids and total:
            # As an abort from the queue does: the last id once more, and all rows.
            ids, rows = [token(total - 1)], [[logprob(i), token(i), None] for i in range(total)]
        most = request.body.get("top_logprobs_num", 0)
        meta: dict[str, Any] = {
            "id": request.body["rid"],
            "finish_reason": request.ending,
            "completion_tokens": total,
            "weight_version": self._known,
            "output_token_logprobs": rows,
            "input_token_logprobs": [],
        }
        if most:
            meta["output_top_logprobs"] = [_rows(likeliest(row[1] - token(0), most)) for row in rows]
        if request.body["logprob_start_len"] == 0:
            places = range(1, len(request.body["input_ids"]))
            meta["input_token_logprobs"] = [[None, token(0), None], *([logprob(i), token(i), None] for i in places)]
            if most:
                meta["input_top_logprobs"] = [None, *(_rows(likeliest(i, most)) for i in places)]
        if request.ending is not None and self.spans:
            # One empty span, of the weights now, for a completion without tokens.
            nothing = [{"version": self.label, "start": 0, "end": 0}]
            meta["weight_versions"] = spans_of(request.labels) or nothing
        return b"data: " + json.dumps({"output_ids": ids, "meta_info": meta}).encode() + b"\n\n"

    async def _abort(self, body: dict[str, Any]) -> Response:
        for rid, request in self.requests.items():
            if request.scheduled and request.ending is None and rid.startswith(body["rid"]):
                request.ending = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        return Response()

    async def _pause(self, body: dict[str, Any]) -> Response:
        self.paused = body["mode"]
        return JSONResponse({"status": "ok"})

    async def _continue(self, body: Any) -> Response:
        assert body is not None, "the route takes a body"
        self.paused = ""
        return JSONResponse({"status": "ok"})

    async def _update(self, body: dict[str, Any]) -> Response:
        assert self.paused, "without a pause this waits for all requests"
        self.label = body["weight_version"]
        running = any(request.scheduled and request.ending is None for request in self.requests.values())
        if body["flush_cache"] and self.paused == "in_place" and running:
            words = "Weights were updated, but the cache was not flushed because requests are still running or queued."
            return JSONResponse({"success": False, "message": words, "num_paused_requests": 0}, 400)
        if not self.stale:
            self._known = self.label
        return JSONResponse(
            {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        )

    async def _model_info(self, _: Any) -> Response:
        return JSONResponse({"model_path": "/models/tiny", "weight_version": self._known})

    async def _server_info(self, _: Any) -> Response:
        return JSONResponse({**self.info, "internal_states": [{"world_size": 1}]})

    async def _ready(self, _: Any) -> Response:
        return Response(status_code=503 if self.paused else 200)

    async def _loads(self, _: Any) -> Response:
        load = {"dp_rank": 0, "num_running_reqs": 3, "num_waiting_reqs": 2, "token_usage": 0.25}
        return JSONResponse({"version": "0.5.23", "loads": [load]})


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """The address of a server that runs `app` in this event loop."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    sock = config.bind_socket()
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        sock.close()


@asynccontextmanager
async def fake_sglang() -> AsyncIterator[tuple[FakeSglang, SglangContract]]:
    """A fake server, and a contract that speaks to it."""
    fake = FakeSglang()
    async with serving(fake.app()) as fake.address:
        contract = SglangContract(Http(fake.address))
        try:
            yield fake, contract
        finally:
            await contract.close()
            await fake.let_go()


def _rows(told: list[tuple[int, float]]) -> list[list[Any]]:
    return [[one, token_id, None] for token_id, one in told]
