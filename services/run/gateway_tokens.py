"""The tokens of a run's gateway, in its folder: one for everything, and one for each scope."""

from pathlib import Path

from streamrl.gateway.auth import Scope, all_scopes_token, scope_token
from streamrl.services.run.folder import RunFolder, write_secret

FILE = "gateway-token"


def token_path(run: RunFolder, scope: Scope | None = None) -> Path:
    """Of the token for one scope; None: of that for all."""
    return run.path / (FILE if scope is None else f"{FILE}.{scope}")


def write_tokens(run: RunFolder) -> None:
    """Write them, each readable by the run's user alone. They follow from the run's key, and so stay what they were."""
    key = run.key()
    write_secret(token_path(run), all_scopes_token(key).encode())
    for scope in Scope:
        write_secret(token_path(run, scope), scope_token(key, scope).encode())
