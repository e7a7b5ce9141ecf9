"""Which requests any gateway of a run answers."""

import pytest

from streamrl.gateway.anywhere import ANYWHERE, answered_anywhere
from streamrl.gateway.routes import ROUTES, STREAMED

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        (CHAT, set(), b'{"model":"run","messages":[]}'),
        (CHAT, {"host"}, b'{"metadata":{"user":"a"}}'),
        (CHAT, set(), b'{"metadata":{"session_id":null}}'),
        (CHAT, set(), b'{"metadata":"text"}'),
        ("/v1/models/any", set(), b""),
        ("/healthz", set(), b""),
    ],
)
def test_what_is_of_no_session_is_answered_anywhere(path: str, headers: set[str], body: bytes) -> None:
    assert answered_anywhere(path, headers, body)


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        (CHAT, {"x-session-id"}, b"{}"),
        (CHAT, {"x-streamrl-session"}, b"{}"),
        (CHAT, set(), b'{"metadata":{"session_id":"a"}}'),
        (CHAT, set(), b'{"metadata":{"session_id":7}}'),
        (CHAT, set(), b'{"metadata":{},"metadata":{"session_id":"a"}}'),
        (CHAT, set(), b'{"temperature":NaN,"metadata":{"session_id":"a"}}'),
        (CHAT, set(), b"[1]"),
        (CHAT, set(), b"\xff{"),
        ("/v1/responses", set(), b"{}"),
        ("/api/status", set(), b""),
        ("/nothing", set(), b""),
        ("/", set(), b""),
    ],
)
def test_the_rest_is_for_the_gateway_that_keeps_sessions(path: str, headers: set[str], body: bytes) -> None:
    assert not answered_anywhere(path, headers, body)


def test_all_that_is_answered_anywhere_is_a_route_whose_body_is_read_before() -> None:
    assert set(ROUTES) >= ANYWHERE
    assert not ANYWHERE & STREAMED
