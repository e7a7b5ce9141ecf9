"""The routes of the gateway, as a FastAPI application. It knows neither Ray nor the socket that it is served on.

A route reads a body that the guard let through, has `Reader` say what is asked, and `Answering` answer it. Whatever is
refused, wherever, is answered in OpenAI's shape with a code.
"""

import asyncio
import html
import secrets
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from streamrl.config.schema.streams import DEFAULT_STREAM, STREAM_NAME, TASK
from streamrl.gateway.dialects import refusal_body
from streamrl.gateway.prompts.lines import KEY_LETTERS, PromptLine
from streamrl.gateway.refusal import Refusal, invalid, json_bytes
from streamrl.gateway.sessions.session_body import RewardBody, SessionBody, checked
from streamrl.gateway.sessions.trajectory_body import TrajectoryBody
from streamrl.gateway.validation import LONGEST_PATH, no_route, refusal_of
from streamrl.services.gateway.answering import ClientGone, unless_gone
from streamrl.services.gateway.dialects.anthropic import add_anthropic
from streamrl.services.gateway.dialects.openai import add_openai
from streamrl.services.gateway.dialects.responses import add_responses
from streamrl.services.gateway.dialects.vllm import add_vllm
from streamrl.services.gateway.gateway_services import GatewayServices, ModelServices
from streamrl.services.gateway.refusals import ANYBODY, FAULT_SCHEMAS, REFUSALS
from streamrl.services.gateway.training.prompts import PromptStream
from streamrl.services.gateway.training.samples import MOST
from streamrl.services.gateway.training.sessions import SessionService
from streamrl.services.gateway.training.trajectories import TrajectoryService
from streamrl.services.gateway.weights import WeightsStream
from streamrl.services.run.control.server import finite
from streamrl.services.run.scaling import AUTO

PageSize = Annotated[int, Field(ge=1, le=MOST)]
Cursor = Annotated[str, Field(max_length=40)]
VersionName = Annotated[str, Field(max_length=40)]
StepNumber = Annotated[int, Field(ge=-1, lt=2**63)]


def _size(given: Any) -> Any:
    # No union: of that each member would say what is wrong.
    if type(given) is not int and given != AUTO:
        raise ValueError(f'a whole number, or "{AUTO}"')
    return given


Size = Annotated[Any, AfterValidator(_size), WithJsonSchema({"anyOf": [{"type": "integer"}, {"const": AUTO}]})]
StreamName = Annotated[str, Field(pattern=f"^{STREAM_NAME}$")]


_PROMPT_LINE = {"application/x-ndjson": {"schema": PromptLine.model_json_schema()}}
LINES: dict[str, Any] = {
    "responses": REFUSALS,
    "status_code": 200,
    "response_class": PromptStream,
    "openapi_extra": {"requestBody": {"content": _PROMPT_LINE}},
}
"""What is told of a route that streams prompts."""
_CODES = {400: "invalid_body", 404: "not_found", 405: "method_not_allowed"}
"""Of the statuses that the framework gives by itself."""
_MESSAGES = {400: "the body cannot be read; send JSON in UTF-8, not packed, with integers of at most 4,300 digits"}


class GatewayApp(FastAPI):
    """Its specification is made when it is asked for: to make it takes longer than all else of a start."""

    def openapi(self) -> dict[str, Any]:
        """What the framework says otherwise, or not: a wrong body is answered by 400, not 422; how a refusal looks."""
        if self.openapi_schema is not None:
            return self.openapi_schema
        spec = super().openapi()
        for operation in (one for path in spec["paths"].values() for one in path.values()):
            operation["responses"].pop("422", None)
        spec["components"]["schemas"].update(FAULT_SCHEMAS)
        for name in ("HTTPValidationError", "ValidationError"):
            spec["components"]["schemas"].pop(name, None)
        return spec


def make_model_app(services: ModelServices) -> FastAPI:
    """The part of the application that needs replicas and tokenizer alone (`streamrl.gateway.anywhere`)."""
    app = GatewayApp(
        title="streamrl gateway",
        description="Completions of a model while it is trained. Send `Authorization: Bearer` with the run's token.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_refusals(app)
    _add_health(app, services)
    add_openai(app, services)
    add_anthropic(app, services)
    add_vllm(app, services)
    return app


def make_app(services: GatewayServices) -> FastAPI:
    """The application, without its guard."""
    app = make_model_app(services)
    add_responses(app, services)
    _add_docs(app)
    _add_prompts(app, services)
    _add_trajectories(app, services.trajectories)
    _add_sessions(app, services.sessions, services.session_token)
    _add_run(app, services)
    _add_controls(app, services)
    _add_weights(app, services)
    return app


class CancelRequest(BaseModel):
    """The body of `/api/prompts/cancel`. stream: as of the submission. keys: of its prompts."""

    model_config = ConfigDict(extra="forbid")

    stream: StreamName = DEFAULT_STREAM
    keys: Annotated[list[Annotated[str, Field(max_length=KEY_LETTERS)]], Field(min_length=1, max_length=4096)]


def _add_prompts(app: FastAPI, services: GatewayServices) -> None:
    @app.post("/api/prompts", **LINES)
    async def submit(stream: StreamName = DEFAULT_STREAM) -> Response:
        """Prompts to be trained on, a JSON object a line; each is answered, with its rollouts, when its group is
        scored. Lines may come as long as the connection lasts."""
        if stream == TASK:
            raise invalid("invalid_value", f"{TASK!a} is the run's own data; give the stream another name", "stream")
        return PromptStream(services.prompts, stream)

    @app.post("/api/prompts/cancel", responses=REFUSALS)
    async def cancel(body: CancelRequest) -> Response:
        """Give up prompts that have not ended."""
        return _json({"generating": await services.prompts.cancel(body.stream, body.keys)})


def _add_trajectories(app: FastAPI, services: TrajectoryService) -> None:
    @app.post("/api/trajectories", responses=REFUSALS)
    async def offer(body: TrajectoryBody) -> Response:
        """A trajectory that was made and scored elsewhere, to be trained on: ids, log-probs, versions, reward."""
        limits = {"context": services.context, "vocab_size": services.vocab_size}
        trajectory = await asyncio.to_thread(
            body.trajectory, **limits, components=services.components, drawn=services.drawn
        )
        return _json(await services.take(trajectory))


def _add_sessions(app: FastAPI, services: SessionService, token_of: Callable[[str], str]) -> None:
    @app.post("/api/sessions", responses=REFUSALS)
    async def begin(body: SessionBody) -> Response:
        """The id of a session, and a key whose calls are its own: for agents that can set no header."""
        name = secrets.token_hex(12) if body.session_id is None else checked(body.session_id, "session_id")
        services.require_training()
        return _json({"session": name, "api_key": token_of(name)})

    @app.post("/api/sessions/{session_id}/reward", responses=REFUSALS)
    async def reward(session_id: str, body: RewardBody) -> Response:
        """End a session: its turns and forks are a trajectory with this reward, and handed to the learner."""
        return _json(await services.reward(checked(session_id, "session_id"), body))


def _add_run(app: FastAPI, services: GatewayServices) -> None:
    @app.get("/api/status", responses=REFUSALS)
    async def status() -> Response:
        """What `streamrl status` says of the running system."""
        return _json(finite(await services.status()))

    @app.get("/api/samples", responses=REFUSALS)
    async def samples(limit: PageSize = 50, before: Cursor = "") -> Response:
        """The newest rollouts that were sampled and scored, with tokens, versions and rewards. `before` is what `next`
        of another page said; rows that the run has let go are left out."""
        page = await services.samples.page(limit, before)
        return Response(await asyncio.to_thread(json_bytes, page), media_type="application/json")

    @app.get("/metrics", responses=REFUSALS, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """The same figures for Prometheus."""
        text = services.counts.text(services.pool.running, await services.status())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_controls(app: FastAPI, services: GatewayServices) -> None:
    @app.get("/api/scale", responses=REFUSALS)
    async def sizes() -> Response:
        """What can be scaled: of each part how many there are to be, and of replicas how many serve."""
        told = {part: {"now": size} for part, size in (await services.controls.sizes()).items()}
        told["rollout"]["serving"] = services.pool.serving
        return _json(told)

    @app.post("/api/scale", responses=REFUSALS)
    async def scale(body: dict[str, Size]) -> Response:
        """Have more or fewer of some parts, by name: `{"rollout": 4}`; `"auto"` leaves replicas to autoscaling. Waits
        for none of them to come or go."""
        return _json(await services.controls.scale(body))


def _add_weights(app: FastAPI, services: GatewayServices) -> None:
    @app.get("/api/versions", responses=REFUSALS)
    async def newest_version(request: Request, after: StepNumber = -1) -> Response:
        """The newest published version. With `after`, a step, the answer waits for a version beyond it, for some 25
        seconds at most; then it is whatever there is."""
        newest = await unless_gone(request.receive, services.versions.newest(after))
        return _json({"version": None if newest is None else str(newest)})

    @app.get("/api/weights", responses=REFUSALS, status_code=200, response_class=WeightsStream)
    async def weights(version: VersionName = "") -> Response:
        """The weights of a version, the newest one unless it is named, as a safetensors file."""
        return await services.weights.open(version)


def _add_health(app: FastAPI, services: ModelServices) -> None:
    @app.get("/healthz", responses=ANYBODY)
    async def healthz() -> Response:
        """The gateway answers."""
        return _json({"status": "ok"})

    @app.get("/health", responses={**ANYBODY, 503: REFUSALS[503]})
    @app.get("/readyz", responses={**ANYBODY, 503: REFUSALS[503]})
    async def readyz() -> Response:
        """A replica serves, so that completions can be had. `/health` is what vLLM and SGLang call it."""
        if not services.pool.ready:
            raise Refusal(503, "no_replica", "no replica serves yet; ask again soon")
        return _json({"status": "ready"})


def _add_docs(app: FastAPI) -> None:
    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        """The routes for people, without scripts: a page with a token must load nothing from elsewhere."""
        return HTMLResponse(_page(app.openapi()))


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return _refused(refusal, request)

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        return _refused(refusal_of(error.errors(), request.headers.get("content-type", "")), request)

    @app.exception_handler(ValidationError)
    async def not_valid_as_a_chat(request: Request, error: ValidationError) -> Response:
        """Of a dialect whose body is right in its own form."""
        return _refused(refusal_of(error.errors()), request)

    @app.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        message = _MESSAGES.get(error.status_code, str(error.detail))
        routes = [route for route in app.routes if isinstance(route, Route)]
        headers = dict(error.headers or {})
        if error.status_code == 404:
            message = no_route(request.method, request.url.path, [route.path for route in routes])
        if error.status_code == 405:
            allowed = _methods(routes, request.scope["path"])
            headers = {"allow": ", ".join(allowed)}
            message = f"{request.method} is not for {request.url.path[:LONGEST_PATH]!a}; send {' or '.join(allowed)}"
        answered = _refused(Refusal(error.status_code, _CODES[error.status_code], message), request)
        answered.headers.update(headers)
        return answered

    @app.exception_handler(ClientGone)
    async def gone(_: Request, __: ClientGone) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        structlog.get_logger().error("a request failed", error=repr(error))
        fault = Refusal(500, "internal_error", "the gateway failed over this request; its log says why")
        return _refused(fault, request)


def _methods(routes: Sequence[Route], path: str) -> list[str]:
    """Those that a path takes, in all of its routes together."""
    found: set[str] = set()
    found.update(*(route.methods or () for route in routes if route.path_regex.match(path)))
    return sorted(found | {"HEAD"} if "GET" in found else found)


def _json(value: Any) -> Response:
    return Response(json_bytes(value), media_type="application/json")


def _refused(refusal: Refusal, request: Request) -> Response:
    content = json_bytes(refusal_body(refusal, request.url.path))
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
