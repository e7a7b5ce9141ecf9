"""Who may do what at the gateway. Pure: the headers of a request in, a refusal or nothing out.

Guarantees: a token is compared in constant time with every token that there is; a token of another run is a wrong one;
a page of another site cannot use the gateway through its reader's browser, neither by its own name (Host) nor across
sites (Origin). It keeps no secret but the tokens, and says none.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from streamrl.gateway.refusal import Refusal


class Scope(StrEnum):
    """What a token allows. generate: completions. submit: prompts and rewards for the learner. control: to look at the
    run, and to change it."""

    GENERATE = "generate"
    SUBMIT = "submit"
    CONTROL = "control"


_SESSION: Final = "srl-session."


def all_scopes_token(key: bytes) -> str:
    """The token of a run for everything. key: the run's 32 secret bytes."""
    return _derived(key, "all")


def scope_token(key: bytes, scope: Scope) -> str:
    """The token of a run for one scope: who holds it cannot find another one by it."""
    return _derived(key, scope.value)


def session_token(key: bytes, session: str) -> str:
    """A token for completions of one session, for agents that can set no header."""
    return f"{_SESSION}{_derived(key, f'session {session}')}.{session}"


def _derived(key: bytes, what: str) -> str:
    return "srl-" + hmac.new(key, b"streamrl gateway token: " + what.encode(), hashlib.sha256).hexdigest()


class Doorkeeper:
    """Decides on one request after the other.

    key: the run's secret bytes. names: what the Host of a request may say beside `localhost` and addresses, which no
    page can make its own name mean.

    Example:
        doorkeeper = Doorkeeper(key, names=["train.example.org"])
        refusal = doorkeeper.refusal(host, origin, authorization, Scope.GENERATE)
    """

    def __init__(self, key: bytes, names: Iterable[str] = ()) -> None:
        self._key = key
        everything = frozenset(Scope)
        self._tokens = [(all_scopes_token(key).encode(), everything)]
        self._tokens += [(scope_token(key, scope).encode(), frozenset({scope})) for scope in Scope]
        self._names = {"localhost", *(name.lower() for name in names)}

    def refusal(self, host: str, origin: str, authorization: str, needed: Scope | None) -> Refusal | None:
        """Why a request is refused; None when it may go on. Headers that are not there are "". needed: None for what
        anybody may see."""
        if not self._is_ours(host):
            what = "name the gateway by an address or localhost, or list the name in gateway.names"
            return Refusal(403, "bad_host", f"Host {host!a} is not a name of this gateway; {what}")
        if origin and not _same_place(origin, host):
            return Refusal(403, "bad_origin", f"a page of {origin!a} may not use this gateway")
        return None if needed is None else self._refusal_of_token(authorization, needed)

    def session_of(self, authorization: str) -> str | None:
        """The session whose own token this is; None where it is that of none."""
        return self._session(authorization.partition(" ")[2].strip())

    def _session(self, token: str) -> str | None:
        _, _, session = token.removeprefix(_SESSION).partition(".")
        known = session_token(self._key, session).encode(errors="replace")
        return session if session and hmac.compare_digest(token.encode(errors="replace"), known) else None

    def _refusal_of_token(self, authorization: str, needed: Scope) -> Refusal | None:
        if not authorization:
            return Refusal(401, "missing_api_key", "no token: send Authorization: Bearer, with the run's gateway-token")
        kind, _, token = authorization.partition(" ")
        allowed = self._scopes(token.strip()) if kind.lower() == "bearer" else None
        if allowed is None:
            return Refusal(401, "invalid_api_key", "not a token of this run; it is in the run folder's gateway-token")
        if needed not in allowed:
            what = f"this token is for {', '.join(sorted(allowed))}, and this route wants {needed}"
            where = f"its token is in the run folder's gateway-token.{needed}"
            return Refusal(403, "insufficient_scope", f"{what}; {where}")
        return None

    def _scopes(self, token: str) -> frozenset[Scope] | None:
        """What a token allows; None for one that is not ours. Looks at all of ours, whichever it is."""
        given, found = token.encode(errors="replace"), None
        if self._session(token) is not None:
            found = frozenset({Scope.GENERATE})
        for known, scopes in self._tokens:
            if hmac.compare_digest(given, known):
                found = scopes
        return found

    def _is_ours(self, host: str) -> bool:
        name = _name_of(host)
        if name is None:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True


def _name_of(host: str) -> str | None:
    """The name in a Host header, without its port; None when it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname.lower()


def _same_place(origin: str, host: str) -> bool:
    """Whether a page of `origin` came from `host` itself."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
