"""The rules about `learner.router_replay`: who can record routes, and who can take them. Pure: a configuration in,
problems out."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config

_KEY = "learner.router_replay"


def routes_are_recorded(config: Config) -> Iterator[Problem]:
    """By the torch engine on a CPU."""
    rollout = config.rollout
    if not config.learner.router_replay:
        return
    if rollout.engine != "torch":
        yield _problem(f'the engine "{rollout.engine}" records no routes yet; set "torch", or false', "rollout.engine")
    elif rollout.device != "cpu":
        yield _problem('routes are recorded on a CPU only yet; set rollout.device = "cpu", or false', "rollout.device")


def routes_are_taken(config: Config) -> Iterator[Problem]:
    """By FSDP2, where each rank has all tokens of its packs."""
    learner = config.learner
    if not learner.router_replay:
        return
    if learner.backend != "fsdp":
        yield _problem(f'"{learner.backend}" takes no routes yet; set "fsdp", or false', "learner.backend")
    if learner.sequence_parallel > 1:
        what = "routes are not spread with the tokens of a pack; set learner.sequence_parallel = 1, or false"
        yield _problem(what, "learner.sequence_parallel")


def _problem(what: str, other: str) -> Problem:
    return Problem(key=_KEY, what=what, given="true", involves=(other,))


REPLAY_RULES = (routes_are_recorded, routes_are_taken)
