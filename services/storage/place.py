"""Where a run's checkpoints lie beside its folder, and what is found there before it starts."""

import msgspec

from streamrl.config import Config
from streamrl.errors import StreamRLError
from streamrl.services.storage.ask import ask
from streamrl.services.storage.orders import Look, Looked, Probe
from streamrl.storage.address import join, local_path

LOOK_SHARE = 0.1
"""Of `deadlines.upload_s`: what a look at a store may take."""


def address_of(config: Config) -> str:
    """Of this run's checkpoints: runs of other names may share `checkpoint.folder`."""
    return join(config.checkpoint.folder or "", config.name)


def look_limit_s(config: Config) -> float:
    return config.deadlines.upload_s * LOOK_SHARE


def look(config: Config) -> Looked:
    """Who uses the address of a run, and how far it came."""
    return msgspec.convert(ask(Look(address_of(config)), look_limit_s(config)), Looked)


def require_stores(config: Config) -> list[str]:
    """Put something into each store of a configuration, and take it away: whether it is there, and lets us in. What is
    found there, in lines. Raises StreamRLError that names the key."""
    lines = []
    if config.checkpoint.folder is not None:
        _probe("checkpoint.folder", address_of(config), config)
        found = look(config)
        what = "nothing yet" if found.step is None else f"the checkpoint of step {found.step}"
        whose = "" if found.owner is None else f", of run {found.owner.run_id}"
        lines.append(f"checkpoints: also in {address_of(config)}, which has {what}{whose}")
    if config.weights.folder is not None and local_path(config.weights.folder) is None:
        _probe("weights.folder", config.weights.folder, config)
    return lines


def _probe(key: str, address: str, config: Config) -> None:
    try:
        ask(Probe(address), look_limit_s(config))
    except StreamRLError as error:
        raise type(error)(f"{key}: {error}") from error
