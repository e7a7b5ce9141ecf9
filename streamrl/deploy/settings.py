"""What a deployment is made of: the configuration as it runs there, what it needs, and what the user chose."""

import re

import msgspec
from msgspec import Struct

from streamrl.config.loading.dump import said, value_of
from streamrl.config.rules.loopback import is_loopback
from streamrl.config.schema import fields
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import toml_value
from streamrl.deploy.demand import Demand
from streamrl.deploy.places import ENGINES

EVERYWHERE = "0.0.0.0"
SERVICE = "run"
"""What Prometheus calls the run's container in a compose file."""
CONFIG_FILE = "run.toml"
_SWEEP_S = 15  # beyond `deadlines.stop_s`: what is left is swept away, and the summary told
_LONGEST_NAME = 40  # of 63 letters, the rest is for what others add


class Deployment(Struct, frozen=True, kw_only=True):
    """One run to be deployed. config: as the user wrote it. image: None for the one that the Dockerfile makes. home:
    the way from the written files to the run's home, the folder in which `streamrl deploy` was called; files: the way
    back."""

    config: Config
    demand: Demand
    image: str | None
    home: str
    files: str

    @property
    def device(self) -> str:
        return "cuda" if self.demand.uses_gpus else "cpu"

    @property
    def engine(self) -> str:
        """Which server's environment the image has, `none` for no server."""
        rollout = self.config.rollout
        return rollout.engine if rollout.is_server and rollout.server.endpoint is None else "none"

    @property
    def image_name(self) -> str:
        engine = "" if self.engine == "none" else f"-{self.engine}"
        return self.image or f"streamrl:{self.device}{engine}"

    @property
    def name(self) -> str:
        """The run's name as a DNS label."""
        return re.sub(r"[^a-z0-9]+", "-", self.config.name.lower()).strip("-")[:_LONGEST_NAME].rstrip("-") or "run"

    @property
    def grace_s(self) -> int:
        """Seconds from an order to stop until the run may be killed."""
        return round(self.config.deadlines.stop_s) + _SWEEP_S


def with_ray(config: Config, address: str) -> Config:
    """The configuration with another `ray.address`."""
    return msgspec.structs.replace(config, ray=msgspec.structs.replace(config.ray, address=address))


def in_container(deployment: Deployment, ray_address: str = "local") -> Config:
    """The configuration as it runs in a container: the gateway listens where others reach it, by the names that the
    container has for them, and servers are those of the image."""
    config = with_ray(deployment.config, ray_address)
    gateway, server = config.gateway, config.rollout.server
    if gateway.enabled:
        host = EVERYWHERE if is_loopback(gateway.host) else gateway.host
        names = tuple(dict.fromkeys([*gateway.names, SERVICE, deployment.name]))
        gateway = msgspec.structs.replace(gateway, host=host, names=names)
    if deployment.engine != "none" and server.python is None:
        server = msgspec.structs.replace(server, python=f"{ENGINES}/{deployment.engine}/bin/python")
    rollout = msgspec.structs.replace(config.rollout, server=server)
    return msgspec.structs.replace(config, gateway=gateway, rollout=rollout)


def config_text(config: Config) -> str:
    """The keys that have another value than their default, as TOML. `load` of it gives `config`."""
    blocks: dict[str, list[str]] = {}
    defaults = Config()
    for leaf in fields.leaves():
        value, default = value_of(config, leaf.name), value_of(defaults, leaf.name)
        if value != default:
            table, _, key = leaf.name.rpartition(".")
            blocks.setdefault(table, []).append(f"{key} = {toml_value(said(value, default))}\n")
    return "\n".join("".join([*([f"[{table}]\n"] if table else []), *lines]) for table, lines in blocks.items())
