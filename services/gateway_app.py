"""The routes of the gateway, as a FastAPI application. It knows neither Ray nor the socket that it is served on.

A route reads a body that the guard let through, has `Reader` say what is asked, and `Answering` answer it. Whatever is
refused, wherever, is answered in OpenAI's shape with a code.
"""

import asyncio
import html
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from services.control import finite
from services.gateway_answering import Answering, ClientGone, answer, head_of
from services.gateway_pool import Pool
from streamrl.gateway.answers import ChatForm, CompletionForm, models
from streamrl.gateway.asked import ChatRequest, CompletionRequest, Limits, Reader
from streamrl.gateway.prometheus import GatewayCounts
from streamrl.gateway.refusal import Refusal, invalid, json_bytes
from streamrl.models.tokenizer import TextTokenizer

Status = Callable[[], Awaitable[dict[str, Any]]]
SEED_BITS = 62


class Fault(BaseModel):
    """What is wrong, in OpenAI's words. code: stable, for programs."""

    message: str
    type: str
    param: str | None
    code: str


class FaultBody(BaseModel):
    error: Fault


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": FaultBody, "description": text}
    for status, text in {
        400: "The request is wrong",
        401: "No token of this run",
        403: "The token does not allow this, or Host or Origin is not the gateway's",
        404: "There is no such model or route",
        408: "The body did not arrive in time",
        413: "The body is too long",
        429: "Too many requests at once",
        502: "The replica died in the middle",
        503: "No replica serves, or the engine could not complete it",
        504: "The answer took too long",
    }.items()
}
_CODES = {400: "invalid_body", 404: "not_found", 405: "method_not_allowed"}


@dataclass(frozen=True, slots=True)
class Desk:
    """What the routes work with. created: Unix seconds of the run's making. status: of the run."""

    reader: Reader
    limits: Limits
    tokenizer: TextTokenizer
    pool: Pool
    answering: Answering
    counts: GatewayCounts
    status: Status
    created: int


def make_app(desk: Desk) -> FastAPI:
    """The application, without its guard."""
    app = FastAPI(
        title="streamrl gateway",
        description="Completions of a model while it is trained. Send `Authorization: Bearer` with the run's token.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_refusals(app)
    _add_health(app, desk)
    _add_openai(app, desk)
    _add_run(app, desk)
    return app


def _add_openai(app: FastAPI, desk: Desk) -> None:
    completion_form, chat_form = CompletionForm(desk.tokenizer), ChatForm(desk.tokenizer)
    model = desk.limits.model

    @app.get("/v1/models", responses=REFUSALS)
    async def list_models() -> Response:
        """The one model that is served, and the versions that replicas answer under."""
        return _json(models(model, desk.created, desk.limits.context, desk.pool.versions))

    @app.post("/v1/completions", responses=REFUSALS)
    async def complete(body: CompletionRequest, request: Request) -> Response:
        """Completions of a text or of token ids."""
        asked = await asyncio.to_thread(desk.reader.completion, body, secrets.randbits(SEED_BITS))
        head = head_of(completion_form, secrets.token_hex(12), model)
        return await answer(request, desk.answering, asked, completion_form, head)

    @app.post("/v1/chat/completions", responses=REFUSALS)
    async def chat(body: ChatRequest, request: Request) -> Response:
        """The next turn of a conversation."""
        asked = await asyncio.to_thread(desk.reader.chat, body, secrets.randbits(SEED_BITS))
        head = head_of(chat_form, secrets.token_hex(12), model)
        return await answer(request, desk.answering, asked, chat_form, head)


def _add_run(app: FastAPI, desk: Desk) -> None:
    @app.get("/api/status", responses=REFUSALS)
    async def status() -> Response:
        """What `streamrl status` says of the running system."""
        return _json(finite(await desk.status()))

    @app.get("/metrics", responses=REFUSALS)
    async def metrics() -> Response:
        """The same figures for Prometheus."""
        text = desk.counts.text(desk.pool.running, await desk.status())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_health(app: FastAPI, desk: Desk) -> None:
    @app.get("/healthz")
    async def healthz() -> Response:
        """The gateway answers."""
        return _json({"status": "ok"})

    @app.get("/readyz", responses={503: REFUSALS[503]})
    async def readyz() -> Response:
        """A replica serves, so that completions can be had."""
        if not desk.pool.ready:
            raise Refusal(503, "no_replica", "no replica serves yet; ask again soon")
        return _json({"status": "ready"})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The routes for people, without scripts: a page with a token must load nothing from elsewhere."""
        return HTMLResponse(_page(app.openapi()))


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(_: Request, refusal: Refusal) -> Response:
        return _refused(refusal)

    @app.exception_handler(RequestValidationError)
    async def not_valid(_: Request, error: RequestValidationError) -> Response:
        return _refused(_of_validation(error.errors()))

    @app.exception_handler(HTTPException)
    async def of_http(_: Request, error: HTTPException) -> Response:
        code = _CODES.get(error.status_code, "refused")
        answered = _refused(Refusal(error.status_code, code, str(error.detail)))
        answered.headers.update(error.headers or {})
        return answered

    @app.exception_handler(ClientGone)
    async def gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> Response:
        structlog.get_logger().error("a request failed", error=repr(error))
        return _refused(Refusal(500, "internal_error", "the gateway failed over this request; its log says why"))


def _of_validation(errors: Sequence[Any]) -> Refusal:
    """The first thing that is wrong with a body, without what was given: that may be long, or secret."""
    first = errors[0]
    param = ".".join(str(part) for part in first["loc"] if part != "body") or None
    if first["type"] == "json_invalid":
        return invalid("invalid_json", f"the body is not JSON: {first['ctx']['error']!a}")
    code = "missing_parameter" if first["type"] == "missing" else "invalid_value"
    return invalid(code, f"{'the body' if param is None else ascii(param)}: {first['msg']!a}", param)


def _json(value: Any) -> Response:
    return Response(json_bytes(value), media_type="application/json")


def _refused(refusal: Refusal) -> Response:
    content = json_bytes(refusal.body())
    return Response(content, refusal.status, headers=refusal.headers(), media_type="application/json")


def _page(spec: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{method.upper()} {html.escape(path)}</code></td>"
        f"<td>{html.escape(operation.get('description', ''))}</td></tr>"
        for path, operations in spec["paths"].items()
        for method, operation in operations.items()
    ]
    title, text = html.escape(spec["info"]["title"]), html.escape(spec["info"]["description"])
    style = "<style>body{font:16px sans-serif;margin:3em}td{padding:.3em 1em}</style>"
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>{style}"
    link = "<p>For programs: <a href='/openapi.json'>openapi.json</a></p>"
    return f"{head}<h1>{title}</h1><p>{text}</p><table>{''.join(rows)}</table>{link}</html>"
