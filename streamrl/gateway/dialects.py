"""Which dialect a route speaks, where that matters before anything is known of the request. Pure."""

from typing import Any

from streamrl.gateway.anthropic.answers import error_body
from streamrl.gateway.refusal import Refusal


def refusal_body(refusal: Refusal, path: str) -> dict[str, Any]:
    """A refusal as the clients of a route read it."""
    return error_body(refusal) if path.startswith("/v1/messages") else refusal.body()
