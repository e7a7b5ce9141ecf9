"""The start of a run's application in Ray Serve.

What starts is of a cluster, and not of a process: it lasts until it is ended (`ending`), whoever dies.
"""

from typing import Final

import msgspec
from ray import serve
from ray.actor import ActorHandle
from ray.serve.exceptions import RayServeException

from streamrl.config import Config
from streamrl.errors import ComponentError
from streamrl.services.actors.process_environment import import_path, variables
from streamrl.services.gateway.ingress.ending import end
from streamrl.services.gateway.ingress.options import deployment_options, http_options, route_prefix, url_of
from streamrl.services.gateway.ingress.replica import IngressReplica

DEPLOYMENT: Final = "ingress"


def start(config: Config, controller: ActorHandle) -> str:
    """Start the application, in the place of one of its name; its URL, of the node that this runs on. Blocks until all
    replicas answer. Raises ComponentError for what Serve refuses."""
    prefix = route_prefix(config)
    actor = {"num_cpus": 0, "runtime_env": {"env_vars": variables(1, import_path())}}
    made = serve.deployment(name=DEPLOYMENT, ray_actor_options=actor, **deployment_options(config))(
        serve.ingress()(IngressReplica)
    )
    try:
        serve.start(proxy_location="EveryNode", http_options=http_options(config))
        end(config.name, wait=True)
        told = msgspec.to_builtins(config), controller, config.name, prefix.rstrip("/")
        serve.run(made.bind(*told), name=config.name, route_prefix=prefix)
    except (RayServeException, RuntimeError, ValueError) as error:
        raise ComponentError(f"Ray Serve does not start application {config.name!r}: {error}") from error
    return url_of(config)
