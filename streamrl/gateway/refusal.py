"""What a client is told that does not get what it asked for: OpenAI's shape, and a code for programs. Pure."""

import json
from typing import Any

from streamrl.errors import StreamRLError

RETRY_AFTER_S = 1
"""What a client that came at a bad moment is told to wait; its own back-off goes on from there."""

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


class Refusal(StreamRLError):
    """A request that is refused.

    status: of HTTP. code: for programs, and stable. param: the field of the request that is to blame, where one is.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
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
