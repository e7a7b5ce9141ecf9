"""Which requests any gateway of a run can answer, and which need the one that keeps sessions, responses and prompts.
Pure: a path, headers and a body in, a decision out.
"""

from typing import Any, Final

import msgspec

from streamrl.gateway.routes import route_of
from streamrl.gateway.sessions.session_body import HEADERS

ANYWHERE: Final = frozenset(
    {
        "/healthz",
        "/readyz",
        "/health",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/inference/v1/generate",
        "/tokenize",
        "/detokenize",
    }
)
"""Routes that need replicas and tokenizer alone, unless their request is a part of a session."""


class _Body(msgspec.Struct):
    metadata: Any = None


def answered_anywhere(path: str, header_names: set[str], body: bytes) -> bool:
    """Whether any gateway can answer a request. header_names: in small letters. body: all of it.

    A body that cannot be read is for the gateway that has the sessions: it may be one of a session in a form that is
    read elsewhere.
    """
    if route_of(path) not in ANYWHERE or not header_names.isdisjoint(HEADERS):
        return False
    if not body:
        return True
    try:
        metadata = msgspec.json.decode(body, type=_Body).metadata
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return not isinstance(metadata, dict) or metadata.get("session_id") is None
