"""What of a configuration cannot be deployed as it is, with the key and the way out. Pure."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePosixPath

from streamrl.config.problems import Problem
from streamrl.config.rules.loopback import is_loopback
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted
from streamrl.deploy.places import outside_home

Rule = Callable[[Config], Iterator[Problem]]

_OF_ONE_NODE = ("/tmp", "/var/tmp", "/dev/shm", "/run")


def refusals(config: Config, target: str) -> list[Problem]:
    """For `target`, a name of `RULES`."""
    return [problem for rule in RULES[target] for problem in rule(config)]


def _port_of_its_own(config: Config) -> Iterator[Problem]:
    if config.gateway.enabled and not config.gateway.port:
        what = "a free port that nobody knows before it is taken cannot be published or probed; set one, as 8000"
        yield Problem(key="gateway.port", what=what, given="0")


def _reached_by_others(config: Config) -> Iterator[Problem]:
    gateway = config.gateway
    if gateway.enabled and not (gateway.has_tls or gateway.insecure_bind):
        what = (
            "in a container the gateway has to listen where others reach it, and tokens travel as they are; set "
            "gateway.tls_cert and gateway.tls_key, or true where the network around it is your own"
        )
        yield Problem(key="gateway.insecure_bind", what=what, given="false", involves=("gateway.host",))


def _no_ray_of_others(config: Config) -> Iterator[Problem]:
    if config.ray.address not in ("local", "auto"):
        what = "what is deployed has a Ray of its own, and does not reach this one; leave the key out"
        yield Problem(key="ray.address", what=what, given=quoted(config.ray.address))


def _one_container(config: Config) -> Iterator[Problem]:
    if config.rollout.resources is not None:
        what = "a container is one node, and places no replica elsewhere; leave the key out, or deploy to k8s or slurm"
        yield Problem(key="rollout.resources", what=what, given=quoted(config.rollout.resources))


def _learner_on_one_node(config: Config) -> Iterator[Problem]:
    if config.learner.nodes > 1:
        what = "these files start one node with ranks; set 1, or start Ray on the nodes yourself (docs/guides/nodes.md)"
        yield Problem(key="learner.nodes", what=what, given=str(config.learner.nodes))


def _nothing_of_this_machine(config: Config) -> Iterator[Problem]:
    """Servers at addresses that mean another machine elsewhere."""
    if config.rollout.server.endpoint is not None:
        what = "the server of this machine is not where the run will be; leave the key out, and each replica starts one"
        yield Problem(key="rollout.server.endpoint", what=what, given=quoted(config.rollout.server.endpoint))
    url = config.sandbox.url
    if url is not None and is_loopback(url.partition("://")[2].partition("/")[0].rpartition(":")[0].strip("[]")):
        what = "the server of this machine is not where the run will be; give a name by which it is reached from there"
        yield Problem(key="sandbox.url", what=what, given=quoted(url))


def _shared_runs(config: Config) -> Iterator[Problem]:
    path = PurePosixPath(config.runs)
    if any(path.is_relative_to(root) for root in _OF_ONE_NODE):
        what = "a job that is queued again may get other nodes, which do not see this folder; name a shared one"
        yield Problem(key="runs", what=what, given=quoted(config.runs))


_IN_CONTAINERS: tuple[Rule, ...] = (
    outside_home,
    _port_of_its_own,
    _reached_by_others,
    _no_ray_of_others,
    _learner_on_one_node,
    _nothing_of_this_machine,
)
RULES: Mapping[str, tuple[Rule, ...]] = {
    "docker": (*_IN_CONTAINERS, _one_container),
    "k8s": _IN_CONTAINERS,
    "slurm": (_shared_runs, _no_ray_of_others, _learner_on_one_node, _nothing_of_this_machine),
}
"""By the name of the target."""
