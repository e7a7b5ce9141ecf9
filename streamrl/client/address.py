"""The address and the token of a run's gateway, from its URL or from the run's folder."""

import json
from dataclasses import dataclass
from pathlib import Path

from streamrl.errors import ComponentError, RunFolderError

TOKEN_FILE = "gateway-token"


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of a gateway, with the prefix of a proxy before it if there is one, and a token of it."""

    url: str
    token: str


class Where:
    """Finds the gateway again for each request, since a restarted run may listen on another port.

    target: a URL, or a run folder. token: None takes the one in the folder.
    """

    def __init__(self, target: str | Path, token: str | None = None) -> None:
        self._target = str(target)
        self._token = token
        self._is_url = self._target.startswith(("http://", "https://"))

    def __str__(self) -> str:
        return self._target

    def find(self) -> Address:
        """Raises RunFolderError for what is no run, or no token; ComponentError while the run has no gateway."""
        if self._is_url:
            if self._token is None:
                raise RunFolderError(f"{self._target}: give the token too, connect(url, token=...)")
            return Address(self._target.rstrip("/"), self._token)
        folder = Path(self._target)
        try:
            launch = json.loads((folder / "run.json").read_text()).get("launch") or {}
            token = self._token or (folder / TOKEN_FILE).read_text() if launch.get("gateway") else ""
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{folder} is no run folder that can be read: {error}") from error
        if not launch.get("gateway"):
            what = "it is not up, or has gateway.enabled = false; `streamrl up` with --gateway.enabled true"
            raise ComponentError(f"the run in {folder} has no gateway at the moment: {what}")
        return Address(str(launch["gateway"]).rstrip("/"), token)
