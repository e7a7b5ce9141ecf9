"""The rules about an engine that is a server, `[rollout.server]`. Pure: a configuration in, problems out."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.rules.loopback import fault_of_endpoint
from streamrl.config.schema.rollout import SERVER_ENGINES, ServerConfig
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

_OF_THE_LAUNCH = ("python", "tensor_parallel", "quantization", "args")
"""Keys that say how to start a server."""

_OPEN = "the server's routes for weights ask for no password, so it listens on a private socket alone"
_NOT_YOURS = {
    "--host": _OPEN,
    "--port": _OPEN,
    "--uds": _OPEN,
    "--enable-return-routed-experts": "learner.router_replay = true adds it, and takes what the server says then",
    "--logprobs-mode": "the learner needs log-probs of the distribution that is sampled",
    "--data-parallel-size": "a version is taken up by one rank; set rollout.replicas",
    "--dp-size": "a version is taken up by one rank; set rollout.replicas",
}
"""Arguments that would break a promise, and why."""


def only_for_servers(config: Config) -> Iterator[Problem]:
    """`[rollout.server]` says nothing to an engine that is none."""
    if config.rollout.is_server:
        return
    for key, value in _set_keys(config.rollout.server, (*_OF_THE_LAUNCH, "endpoint")):
        servers = " or ".join(f'"{name}"' for name in SERVER_ENGINES)
        what = f'the engine "{config.rollout.engine}" is no server; set rollout.engine = {servers}, or leave it out'
        yield Problem(key=f"rollout.server.{key}", what=what, given=quoted(value), involves=("rollout.engine",))


def servers_share_batches(config: Config) -> Iterator[Problem]:
    if config.rollout.is_server and config.rollout.deterministic:
        what = (
            f'"{config.rollout.engine}" is not batch-invariant: what shares a batch changes the last bits; leave this '
            'key out, or set rollout.engine = "torch"'
        )
        yield Problem(key="rollout.deterministic", what=what, given="true", involves=("rollout.engine",))


def server_endpoint(config: Config) -> Iterator[Problem]:
    """A server that is there already: on this machine, for one replica, and nothing to say about its start."""
    server = config.rollout.server
    if not config.rollout.is_server or server.endpoint is None:
        return
    key = "rollout.server.endpoint"
    if fault := fault_of_endpoint(server.endpoint):
        yield Problem(key=key, what=fault, given=quoted(server.endpoint))
    for name, value in _set_keys(server, _OF_THE_LAUNCH):
        what = "the server at rollout.server.endpoint has been started without it; leave one of the two out"
        yield Problem(key=f"rollout.server.{name}", what=what, given=quoted(value), involves=(key,))
    if config.rollout.replicas != 1:
        what = (
            "the replicas would load their versions into one server at rollout.server.endpoint, none knowing of the "
            "others; set 1, or leave the endpoint out"
        )
        yield Problem(key="rollout.replicas", what=what, given=str(config.rollout.replicas), involves=(key,))


def server_arguments(config: Config) -> Iterator[Problem]:
    """Arguments of the server's command line win over those that streamrl gives; not over what it promises."""
    if not config.rollout.is_server:
        return
    for argument in config.rollout.server.args:
        why = _NOT_YOURS.get(argument.split("=")[0].replace("_", "-"))
        if why is not None:
            yield Problem(key="rollout.server.args", what=f"{why}; leave it out", given=quoted(argument))


def _set_keys(server: ServerConfig, keys: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    """(key, value) of those that differ from their default."""
    default = ServerConfig()
    for key in keys:
        if (value := getattr(server, key)) != getattr(default, key):
            yield key, value
