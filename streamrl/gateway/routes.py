"""The routes of the gateway and the scope that each wants. A test holds this table and the application equal."""

from streamrl.gateway.auth import Scope
from streamrl.gateway.page.files import PAGE, PAGE_FILES

ROUTES: dict[str, Scope | None] = {
    "/healthz": None,
    "/readyz": None,
    "/health": None,
    "/openapi.json": None,
    "/docs": None,
    "/v1/models": Scope.GENERATE,
    "/v1/models/{name}": Scope.GENERATE,
    "/v1/completions": Scope.GENERATE,
    "/v1/chat/completions": Scope.GENERATE,
    "/v1/responses": Scope.GENERATE,
    "/v1/messages": Scope.GENERATE,
    "/v1/messages/count_tokens": Scope.GENERATE,
    "/inference/v1/generate": Scope.GENERATE,
    "/tokenize": Scope.GENERATE,
    "/detokenize": Scope.GENERATE,
    "/api/prompts": Scope.SUBMIT,
    "/api/prompts/cancel": Scope.SUBMIT,
    "/api/trajectories": Scope.SUBMIT,
    "/api/sessions": Scope.SUBMIT,
    "/api/sessions/{session_id}/reward": Scope.SUBMIT,
    "/api/status": Scope.CONTROL,
    "/api/samples": Scope.CONTROL,
    "/api/scale": Scope.CONTROL,
    "/api/versions": Scope.CONTROL,
    "/api/weights": Scope.CONTROL,
    "/api/events": Scope.CONTROL,
    "/api/history": Scope.CONTROL,
    "/api/runs": Scope.CONTROL,
    "/metrics": Scope.CONTROL,
    PAGE: None,
    **dict.fromkeys(PAGE_FILES),
}
"""None: anybody may ask; the answer says nothing of the run."""


STREAMED: frozenset[str] = frozenset({"/api/prompts"})
"""Routes that read their body while they answer, and bound what they hold of it by themselves."""


def route_of(path: str) -> str | None:
    """The route of any path, as the table has it; None for one that is none."""
    if path in ROUTES:
        return path
    parts = path.split("/")
    return next((route for route in ROUTES if "{" in route and _matches(route.split("/"), parts)), None)


def _matches(route: list[str], parts: list[str]) -> bool:
    pairs = zip(route, parts, strict=False)
    return len(route) == len(parts) and all(a == b or (a.startswith("{") and b) for a, b in pairs)


def needed_scope(path: str) -> Scope | None:
    """Of any path; one that is no route tells so only to those who may do what its neighbours do."""
    if (route := route_of(path)) is not None:
        return ROUTES[route]
    return Scope.GENERATE if path.startswith("/v1/") else Scope.CONTROL
