"""Where a run's gateway is, and the token that it wants: by its URL, or by the run's folder."""

import json
from dataclasses import dataclass
from pathlib import Path

from streamrl.errors import ComponentError, RunFolderError

TOKEN_FILE = "gateway-token"


@dataclass(frozen=True, slots=True)
class Address:
    """url: of the gateway, without a path."""

    url: str
    token: str


class Where:
    """Finds the gateway, anew each time: a run that was started again may listen elsewhere.

    target: an URL, or a run folder. token: what the gateway wants; of a folder, that of the folder.
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
