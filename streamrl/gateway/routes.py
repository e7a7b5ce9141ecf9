"""The routes of the gateway and the scope that each wants. A test holds this table and the application equal."""

from streamrl.gateway.auth import Scope

ROUTES: dict[str, Scope | None] = {
    "/healthz": None,
    "/readyz": None,
    "/openapi.json": None,
    "/docs": None,
    "/v1/models": Scope.GENERATE,
    "/v1/completions": Scope.GENERATE,
    "/v1/chat/completions": Scope.GENERATE,
    "/api/status": Scope.CONTROL,
    "/metrics": Scope.CONTROL,
}
"""None: anybody may ask; the answer says nothing of the run."""


def needed_scope(path: str) -> Scope | None:
    """Of any path; one that is no route tells so only to those who may do what its neighbours do."""
    if path in ROUTES:
        return ROUTES[path]
    return Scope.GENERATE if path.startswith("/v1/") else Scope.CONTROL
