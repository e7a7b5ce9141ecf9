"""The page of the gateway, and the routes that it lives on: what happens, as it happens, and the figures so far."""

from typing import Annotated

from fastapi import FastAPI, Query
from starlette.responses import Response

from streamrl.gateway.page.files import PAGE, PAGE_FILES, PAGE_HEADERS, page_file
from streamrl.gateway.page.history import LEAST_POINTS
from streamrl.gateway.refusal import json_bytes
from streamrl.services.gateway.answering import EventStream
from streamrl.services.gateway.page.watch import RunWatch
from streamrl.services.gateway.refusals import REFUSALS

MOST_POINTS = 10_000
MOST_FIGURES = 256
Points = Annotated[int, Query(ge=LEAST_POINTS, le=MOST_POINTS)]
RunName = Annotated[str, Query(max_length=255)]
Figures = Annotated[list[str], Query(max_length=MOST_FIGURES)]


def add_page(app: FastAPI, watch: RunWatch) -> None:
    """Give the application the page and its routes."""
    for path in (PAGE, *PAGE_FILES):
        _add_file(app, path)

    @app.get("/api/events", responses=REFUSALS, status_code=200, response_class=EventStream)
    async def events() -> Response:
        """What happens in the run, as server-sent events, and about once a second how it stands (`kind`: `status`)."""
        told = watch.feed.read()
        return EventStream(await anext(told), told)

    @app.get("/api/history", responses=REFUSALS)
    async def history(points: Points = 2000, figure: Figures = [], run: RunName = "") -> Response:  # noqa: B006 - FastAPI copies it
        """The figures of `metrics.jsonl`, all or those named, each in at most so many points, peaks among them; of this
        run, or of one that `/api/runs` names."""
        told = await watch.history(points, figure, run)
        return Response(json_bytes(told), media_type="application/json")

    @app.get("/api/runs", responses=REFUSALS)
    async def runs() -> Response:
        """The runs that lie in the same folder and have metrics, the newest first."""
        return Response(json_bytes({"runs": await watch.runs()}), media_type="application/json")


def _add_file(app: FastAPI, path: str) -> None:
    content, media_type = page_file(path)

    @app.get(path, include_in_schema=False)
    async def file() -> Response:
        return Response(content, headers=PAGE_HEADERS, media_type=media_type)
