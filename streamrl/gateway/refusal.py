"""What a client is told that does not get what it asked for: OpenAI's shape, and a code for programs. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from streamrl.errors import StreamRLError

RETRY_AFTER_S = 1
"""What a client that came at a bad moment is told to wait; its own back-off goes on from there."""

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}

CODES: Mapping[int, frozenset[str]] = {
    400: frozenset(
        {
            "context_length_exceeded",
            "empty_prompt",
            "empty_stop",
            "empty_trajectory",
            "invalid_body",
            "invalid_json",
            "invalid_value",
            "invalid_version_spans",
            "lengths_differ",
            "missing_parameter",
            "nested_too_deep",
            "no_chat_template",
            "non_finite",
            "not_encodable",
            "payload_too_long",
            "sampling_not_trained",
            "template_refused",
            "token_out_of_range",
            "too_many_completions",
            "too_many_stops",
            "tools_not_supported",
            "trajectory_too_long",
            "unknown_parameter",
            "unknown_part",
            "unknown_version",
            "unsupported_parameter",
            "wrong_components",
        }
    ),
    401: frozenset({"missing_api_key", "invalid_api_key"}),
    403: frozenset({"insufficient_scope", "bad_host", "bad_origin"}),
    404: frozenset(
        {
            "model_not_found",
            "not_found",
            "response_not_found",
            "item_not_found",
            "session_not_found",
            "unknown_prompt",
            "unknown_version",
        }
    ),
    405: frozenset({"method_not_allowed"}),
    408: frozenset({"body_too_slow"}),
    409: frozenset(
        {
            "already_rewarded",
            "key_reused",
            "not_enough_resources",
            "own_rollouts_only",
            "session_busy",
            "session_ended",
            "too_stale",
        }
    ),
    410: frozenset({"session_forgotten"}),
    413: frozenset({"body_too_long", "line_too_long"}),
    429: frozenset({"too_many_requests", "too_many_sessions", "too_many_wait"}),
    500: frozenset({"internal_error"}),
    502: frozenset({"replica_died"}),
    503: frozenset({"no_replica", "generation_failed", "run_not_ready", "run_ended"}),
    504: frozenset({"deadline_exceeded"}),
}
"""All that there are, by status. Programs go by them: none changes its meaning."""


class Refusal(StreamRLError):
    """A request that is refused.

    status, code: one of `CODES`. param: the field of the request that is to blame, where one is.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        assert code in CODES.get(status, ()), f"{status} {code} is not among those that clients are told of"
        super().__init__(status, code, message, param)
        self.status = status
        self.code = code
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return f"{self.status} {self.code}: {self.message}"

    def body(self) -> dict[str, Any]:
        """The object that OpenAI's clients look for."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        return {"retry-after": str(RETRY_AFTER_S)} if self.status in (429, 503) else {}


def invalid(code: str, message: str, param: str | None = None) -> Refusal:
    """A request that is wrong in itself."""
    return Refusal(400, code, message, param)


def json_bytes(value: Any) -> bytes:
    """JSON of ASCII: what a client sent may hold half a character, which UTF-8 has no bytes for."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")
