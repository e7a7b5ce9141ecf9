"""Who may use the gateway: tokens, scopes, Host and Origin."""

import hmac
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrl.gateway.auth import Doorkeeper, Scope, all_scopes_token, scope_token, session_token
from streamrl.gateway.refusal import Refusal
from streamrl.services.run.folder import RunFolder
from streamrl.services.run.gateway_tokens import token_path, write_tokens

KEY, OTHER = b"k" * 32, b"o" * 32
HOST = "127.0.0.1:8000"


def decision(
    *, token: str | None = None, needed: Scope | None = Scope.GENERATE, host: str = HOST, origin: str = ""
) -> str:
    """The code of the refusal; "" when the request may go on."""
    authorization = "" if token is None else f"Bearer {token}"
    refusal = Doorkeeper(KEY, ["Train.Example.org"]).refusal(host, origin, authorization, needed)
    return "" if refusal is None else refusal.code


@pytest.mark.parametrize("needed", Scope)
def test_the_token_for_everything_opens_all_and_that_of_a_scope_its_own_alone(needed: Scope) -> None:
    assert decision(token=all_scopes_token(KEY), needed=needed) == ""
    for scope in Scope:
        expected = "" if scope is needed else "insufficient_scope"
        assert decision(token=scope_token(KEY, scope), needed=needed) == expected


@pytest.mark.parametrize("token", [all_scopes_token(OTHER), scope_token(OTHER, Scope.GENERATE), "", "x", "é", "a b"])
def test_a_token_of_another_run_or_of_nobody_is_a_wrong_one(token: str) -> None:
    assert decision(token=token) == "invalid_api_key"


def test_without_a_token_only_what_anybody_may_see_is_open() -> None:
    assert decision(needed=None) == ""
    assert decision(needed=Scope.GENERATE) == "missing_api_key"


@pytest.mark.parametrize("authorization", ["Basic {}", "{}", "Bearer", "Bearer  ", "Bearer x {}"])
def test_a_token_counts_as_a_bearers_alone(authorization: str) -> None:
    given = authorization.format(all_scopes_token(KEY))
    refusal = Doorkeeper(KEY).refusal(HOST, "", given, Scope.GENERATE)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (401, "invalid_api_key")


@given(st.text(max_size=80))
def test_no_text_but_the_tokens_opens_anything(text: str) -> None:
    tokens = {all_scopes_token(KEY), scope_token(KEY, Scope.GENERATE)}
    expected = "" if text.strip() in tokens else "invalid_api_key"
    assert decision(token=text) in (expected, "insufficient_scope")


def test_tokens_are_compared_in_constant_time_each_time_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    real = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for token in (all_scopes_token(KEY), scope_token(KEY, Scope.GENERATE), "wrong"):
        compared.clear()
        decision(token=token)
        assert len(set(compared)) == 1 + len(Scope)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:1", "localhost", "LOCALHOST:80", "[::1]:9", "10.1.2.3", "train.example.org:8000"]
)
def test_a_host_that_is_an_address_or_a_name_of_ours_is_taken(host: str) -> None:
    assert decision(token=all_scopes_token(KEY), host=host) == ""


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "a@localhost",
        "localhost/x",
        "localhost:x",
    ],
)
def test_a_page_that_has_its_own_name_mean_this_machine_is_refused_whatever_token_it_has(host: str) -> None:
    for needed in (None, Scope.GENERATE):
        assert decision(token=all_scopes_token(KEY), host=host, needed=needed) == "bad_host"


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        (f"http://{HOST}", ""),
        (f"https://{HOST}", ""),
        ("http://evil.example", "bad_origin"),
        ("http://127.0.0.1:9999", "bad_origin"),
        ("null", "bad_origin"),
        (f"file://{HOST}", "bad_origin"),
        ("http://[", "bad_origin"),
    ],
)
def test_a_page_of_another_place_is_refused(origin: str, code: str) -> None:
    assert decision(token=all_scopes_token(KEY), origin=origin) == code


def test_no_refusal_says_a_token() -> None:
    secrets = [all_scopes_token(KEY), *(scope_token(KEY, scope) for scope in Scope)]
    refusals = [
        Doorkeeper(KEY).refusal(HOST, "", f"Bearer {token}", Scope.CONTROL) for token in ("wrong", *secrets[1:])
    ]
    said = " ".join(str(refusal.body()) for refusal in refusals if isinstance(refusal, Refusal))
    assert "scope" in said
    assert not any(secret in said for secret in secrets)


def test_tokens_lie_in_the_run_folder_for_its_user_alone_and_stay_what_they_were(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    texts = []
    for _ in range(2):
        write_tokens(run)
        paths = [token_path(run), *(token_path(run, scope) for scope in Scope)]
        texts.append([path.read_text() for path in paths])
        assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 4
    assert run.key().hex() not in " ".join(texts[0])


def test_the_token_of_a_session_is_for_completions_of_that_session_alone() -> None:
    doorkeeper = Doorkeeper(KEY)
    token = session_token(KEY, "agent.1")
    assert doorkeeper.session_of(f"Bearer {token}") == "agent.1"
    assert doorkeeper.refusal(HOST, "", f"Bearer {token}", Scope.GENERATE) is None
    for scope in (Scope.SUBMIT, Scope.CONTROL):
        refusal = doorkeeper.refusal(HOST, "", f"Bearer {token}", scope)
        assert refusal is not None
        assert refusal.code == "insufficient_scope"
    others = [
        token.replace("agent.1", "agent.2"),
        token.removesuffix("agent.1"),
        session_token(b"x" * 32, "agent.1"),
        all_scopes_token(KEY),
        "",
    ]
    assert [doorkeeper.session_of(f"Bearer {other}") for other in others] == [None] * len(others)
