"""What a route may refuse, as the description of the routes says it."""

from typing import Any

from pydantic import BaseModel


class Fault(BaseModel):
    """What is wrong, in OpenAI's words. code: stable, for programs."""

    message: str
    type: str
    param: str | None
    code: str


class FaultBody(BaseModel):
    error: Fault


def _schemas() -> dict[str, Any]:
    body = FaultBody.model_json_schema(ref_template="#/components/schemas/{model}")
    return {**body.pop("$defs"), FaultBody.__name__: body}


FAULT_SCHEMAS = _schemas()
"""By name, for the description's components."""
# By reference: a `model` makes a validator for each status of each route, which takes longer than all else of the
# application.
_CONTENT = {"application/json": {"schema": {"$ref": f"#/components/schemas/{FaultBody.__name__}"}}}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"content": _CONTENT, "description": text}
    for status, text in {
        400: "The request is wrong",
        401: "No token of this run",
        403: "The token does not allow this, or Host or Origin is not the gateway's",
        404: "There is no such model or route",
        408: "The body did not arrive in time",
        409: "What was sent before, or came in time before, stands against it; or the machine has too little for it",
        410: "The session was forgotten",
        413: "The body is too long",
        429: "Too many requests at once",
        500: "A fault of the gateway's",
        502: "The replica died in the middle",
        503: "No replica serves, or the engine could not complete it",
        504: "The answer took too long",
    }.items()
}
STREAMS: dict[int | str, dict[str, Any]] = {
    **REFUSALS,
    200: {"description": "The answer; in events, where `stream` asks for it", "content": {"text/event-stream": {}}},
}
ANYBODY: dict[int | str, dict[str, Any]] = {403: REFUSALS[403], 500: REFUSALS[500]}
"""Refusals of a route that wants no token."""
