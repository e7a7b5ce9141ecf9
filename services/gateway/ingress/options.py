"""What a run's application in Ray Serve is told. Pure: a configuration in, options by Serve's names out."""

from typing import Any, Final

from streamrl.config import Config

ROOM: Final = 2
"""Requests that Serve gives to a replica at once, for each that its guard answers: so a client that comes too many is
refused by the guard, in the gateway's words, and does not wait in a queue of Serve's that nobody bounds."""
END_S: Final = 2.0
"""What requests under way have when a replica ends."""


def route_prefix(config: Config) -> str:
    """Where the application lies: at the root of a Ray of the run's own, below the run's name on a cluster, which other
    runs share."""
    return "/" if config.ray.address == "local" else f"/{config.name}"


def http_options(config: Config) -> dict[str, Any]:
    """What Serve's proxies are told where they are not there yet."""
    gateway = config.gateway
    host = "127.0.0.1" if gateway.host == "localhost" else gateway.host
    tls = {"ssl_certfile": gateway.tls_cert, "ssl_keyfile": gateway.tls_key} if gateway.has_tls else {}
    return {"host": host, "port": gateway.serve.port, **tls}


def deployment_options(config: Config) -> dict[str, Any]:
    """How many replicas there are, and where."""
    given = config.gateway.serve
    size: dict[str, Any] = {"num_replicas": given.replicas}
    if given.max_replicas is not None:
        bounds = {"min_replicas": given.replicas, "max_replicas": given.max_replicas}
        size = {"autoscaling_config": {**bounds, "target_ongoing_requests": given.target_ongoing_requests}}
    apart = {"max_replicas_per_node": given.replicas_per_node} if given.replicas_per_node else {}
    return {
        **size,
        **apart,
        "max_ongoing_requests": ROOM * config.gateway.max_requests,
        "graceful_shutdown_timeout_s": END_S,
        "graceful_shutdown_wait_loop_s": END_S / 4,
    }


def url_of(config: Config) -> str:
    """What clients put in front of the routes, at the node that a proxy of Serve runs on."""
    options, prefix = http_options(config), route_prefix(config)
    host = f"[{options['host']}]" if ":" in options["host"] else options["host"]
    scheme = "https" if config.gateway.has_tls else "http"
    return f"{scheme}://{host}:{options['port']}{prefix.rstrip('/')}"
