"""What each tracker takes of the environment, and why one could not start here: found before a run does.

It imports no tracker's package: it looks whether one is there, and whether there is a key where one is needed.
"""

import netrc
from collections.abc import Iterator, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

COMMON: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "NETRC", "XDG_")
"""Beginnings of variables that every tracker gets, beside what every child gets."""
_OFFLINE: Final = "which writes below the run folder"
_CLOUDS: Final = ("AWS_", "AZURE_", "GOOGLE_")


class Requirement(NamedTuple):
    """module: that must be there. variables: beginnings of those that it gets."""

    module: str
    variables: tuple[str, ...] = ()


REQUIREMENTS: Final[Mapping[str, Requirement]] = {
    "wandb": Requirement("wandb", ("WANDB_",)),
    "mlflow": Requirement("mlflow", ("MLFLOW_", *_CLOUDS)),
    "trackio": Requirement("trackio", ("TRACKIO_", "HF_")),
    "swanlab": Requirement("swanlab", ("SWANLAB_",)),
    "tensorboard": Requirement("tensorboard"),
    "otel": Requirement("opentelemetry.exporter.otlp.proto.http", ("OTEL_",)),
}


def variables_for(tracker: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Of the environment, what a tracker needs: its own variables, keys among them, and no other's."""
    beginnings = (*COMMON, *REQUIREMENTS[tracker].variables)
    return {name: value for name, value in environment.items() if name.startswith(beginnings)}


def faults(trackers: Sequence[str], environment: Mapping[str, str], home: Path) -> Iterator[str]:
    """A sentence for each tracker that cannot start, with the way out."""
    for name in trackers:
        if not _is_installed(REQUIREMENTS[name].module):
            extra = f"pip install 'streamrl[{name}]'"
            yield f"{name}: its package is not installed; run `{extra}`, or leave the tracker out"
        elif (find_fault := _KEYS.get(name)) is not None and (fault := find_fault(environment, home)):
            yield f"{name}: {fault}"


def _is_installed(module: str) -> bool:
    try:
        return util.find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is missing
        return False


def _wandb(environment: Mapping[str, str], home: Path) -> str:
    if environment.get("WANDB_MODE", "").lower() in ("offline", "dryrun", "disabled"):
        return ""
    if any(environment.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return ""
    host = urlsplit(environment.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    if _has_login(Path(environment.get("NETRC") or home / ".netrc"), host):
        return ""
    return f"no key; set WANDB_API_KEY, run `wandb login`, or set WANDB_MODE=offline, {_OFFLINE}"


def _swanlab(environment: Mapping[str, str], home: Path) -> str:
    if environment.get("SWANLAB_MODE", "").lower() in ("offline", "local", "disabled"):
        return ""
    if environment.get("SWANLAB_API_KEY") or (home / ".swanlab" / ".netrc").is_file():
        return ""
    return f"no key; set SWANLAB_API_KEY, run `swanlab login`, or set SWANLAB_MODE=offline, {_OFFLINE}"


def _trackio(environment: Mapping[str, str], home: Path) -> str:
    if not environment.get("TRACKIO_SPACE_ID"):
        return ""
    hub = Path(environment.get("HF_HOME") or home / ".cache" / "huggingface")
    if environment.get("HF_TOKEN") or Path(environment.get("HF_TOKEN_PATH") or hub / "token").is_file():
        return ""
    return (
        "TRACKIO_SPACE_ID is set, and there is no token; set HF_TOKEN, run `hf auth login`, or unset it to write here"
    )


_KEYS: Final = {"wandb": _wandb, "swanlab": _swanlab, "trackio": _trackio}


def _has_login(path: Path, host: str) -> bool:
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
