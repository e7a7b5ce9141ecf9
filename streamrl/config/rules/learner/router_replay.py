"""The rules about `learner.router_replay`: who can record routes, and who can take them. Pure: a configuration in,
problems out."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema.rollout import SERVER_ENGINES
from streamrl.config.schema.run import Config

_KEY = "learner.router_replay"


def routes_are_recorded(config: Config) -> Iterator[Problem]:
    """By SGLang, on a GPU by vLLM, whose part that names experts needs Triton, and on a CPU by the torch engine."""
    rollout = config.rollout
    if not config.learner.router_replay or rollout.engine == "sglang":
        return
    if rollout.engine == "vllm":
        if rollout.device == "cpu" and rollout.server.endpoint is None:
            what = 'vLLM names experts on a GPU alone; set rollout.device = "cuda", another engine, or false'
            yield _problem(what, "rollout.device")
    elif rollout.engine != "torch":
        servers = ", ".join(f'"{name}"' for name in ("torch", *SERVER_ENGINES))
        yield _problem(
            f'the engine "{rollout.engine}" records no routes; set one of {servers}, or false', "rollout.engine"
        )
    elif rollout.device != "cpu":
        what = 'the torch engine records routes on a CPU only yet; set rollout.device = "cpu", another engine, or false'
        yield _problem(what, "rollout.device")


def routes_are_taken(config: Config) -> Iterator[Problem]:
    """By FSDP2, where each rank has all tokens of its packs, and by megatron-core."""
    learner = config.learner
    if learner.router_replay and learner.sequence_parallel > 1:
        what = "routes are not spread with the tokens of a pack; set learner.sequence_parallel = 1, or false"
        yield _problem(what, "learner.sequence_parallel")


def _problem(what: str, other: str) -> Problem:
    return Problem(key=_KEY, what=what, given="true", involves=(other,))


REPLAY_RULES = (routes_are_recorded, routes_are_taken)
