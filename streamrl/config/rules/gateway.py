"""The rules about the door for clients, `[gateway]`. Pure: a configuration in, problems out."""

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from streamrl.config.problems import Problem
from streamrl.config.rules.loopback import is_loopback
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")


def gateway_host(config: Config) -> Iterator[Problem]:
    """It listens on an address, and on one that others reach only as the user says."""
    gateway = config.gateway
    if gateway.host != "localhost" and not _is_address(gateway.host):
        what = 'not an address to listen on; give one as "127.0.0.1" or "0.0.0.0", and names in gateway.names'
        yield Problem(key="gateway.host", what=what, given=quoted(gateway.host))
    elif not (is_loopback(gateway.host) or gateway.has_tls or gateway.insecure_bind):
        what = (
            "others reach it there, and tokens would travel as they are; set gateway.tls_cert and gateway.tls_key, or "
            'gateway.insecure_bind = true, or "127.0.0.1"'
        )
        involves = ("gateway.tls_cert", "gateway.tls_key", "gateway.insecure_bind")
        yield Problem(key="gateway.host", what=what, given=quoted(gateway.host), involves=involves)


def gateway_path_prefix(config: Config) -> Iterator[Problem]:
    """It is compared with paths letter by letter."""
    prefix = config.gateway.path_prefix
    if prefix and not _PREFIX.fullmatch(prefix):
        what = 'begins with a slash, ends with none, and has letters, digits and `-._~` between: as "/llm"'
        yield Problem(key="gateway.path_prefix", what=what, given=quoted(prefix))


def gateway_tls(config: Config) -> Iterator[Problem]:
    """A certificate and its key come together."""
    for one, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        given = getattr(config.gateway, one)
        if given is not None and getattr(config.gateway, other) is None:
            what = f"TLS needs gateway.{other} too; set both, or none"
            yield Problem(key=f"gateway.{one}", what=what, given=quoted(given), involves=(f"gateway.{other}",))


def gateway_serve(config: Config) -> Iterator[Problem]:
    """Serve is for a run with a gateway, and for users who know what it opens."""
    gateway, serve = config.gateway, config.gateway.serve
    key = "gateway.serve.replicas"
    given = quoted(serve.replicas)
    if serve.max_replicas is not None and serve.max_replicas < serve.replicas:
        what = f"fewer than the {serve.replicas} of {key}, its minimum; raise it"
        yield Problem(key="gateway.serve.max_replicas", what=what, given=quoted(serve.max_replicas), involves=(key,))
    if not serve.enabled:
        if serve.max_replicas is not None:
            what = f"autoscaling begins with a replica; set {key} = 1 or more"
            yield Problem(
                key="gateway.serve.max_replicas", what=what, given=quoted(serve.max_replicas), involves=(key,)
            )
        return
    if not gateway.enabled:
        what = "Ray Serve has clients reach the gateway, which this run has not; set gateway.enabled = true"
        yield Problem(key=key, what=what, given=given, involves=("gateway.enabled",))
    if config.ray.address == "local" and not gateway.insecure_bind:
        what = (
            "Ray Serve opens a port on every interface for each replica, and reads bodies without bound; set "
            "gateway.insecure_bind = true if that is meant, or run on a cluster with Ray's token (ray.address)"
        )
        yield Problem(key=key, what=what, given=given, involves=("gateway.insecure_bind", "ray.address"))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


GATEWAY_RULES = (gateway_host, gateway_path_prefix, gateway_serve, gateway_tls)
