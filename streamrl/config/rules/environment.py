"""The rules of `[environment]`. Pure: a configuration in, problems out."""

from collections.abc import Iterator

from streamrl.config.known import ENVIRONMENT_REWARD, ENVIRONMENTS, TOOL_ENVIRONMENT, TOOLS
from streamrl.config.problems import Problem
from streamrl.config.references import is_reference, meant_reference
from streamrl.config.schema.environment import EnvironmentConfig
from streamrl.config.schema.run import Config
from streamrl.config.suggest import nearest_value
from streamrl.config.toml_text import quoted

_NAME = "environment.name"


def _known(config: Config) -> Iterator[Problem]:
    environment = config.environment
    if environment.name is not None:
        yield from _known_name(_NAME, "no such environment", environment.name, ENVIRONMENTS, "`module:Class`")
    for tool in environment.tools:
        yield from _known_name("environment.tools", "no such tool", tool, TOOLS, "`module:function`")


def _known_name(key: str, what: str, name: str, known: tuple[str, ...], own: str) -> Iterator[Problem]:
    if name not in known and not is_reference(name):
        near = nearest_value(name, list(known)) or meant_reference(name, own.strip("`").partition(":")[2])
        allowed = f"{', '.join(map(quoted, known))}, or {own} of your own"
        suggestion = quoted(near) if near else ""
        yield Problem(key=key, what=what, given=quoted(name), allowed=allowed, suggestion=suggestion)


def _keys_of_none(config: Config) -> Iterator[Problem]:
    """What is said of an environment that is not there would do nothing."""
    if config.environment.name is None and config.environment != EnvironmentConfig():
        what = f"no environment: set {_NAME}, or leave the table out"
        yield Problem(key="environment", what=what, involves=(_NAME,))
    if config.environment.name is None and ENVIRONMENT_REWARD in config.reward.rule.functions:
        what = f"there is no environment that gives a reward: set {_NAME}"
        yield Problem(key="reward.function", what=what, given=quoted(ENVIRONMENT_REWARD), involves=(_NAME,))


def _tools(config: Config) -> Iterator[Problem]:
    environment = config.environment
    if environment.name == TOOL_ENVIRONMENT:
        if not environment.tools:
            what = f"no tool that the model could call: name some ({', '.join(TOOLS)}, or `module:function`)"
            yield Problem(key="environment.tools", what=what, involves=(_NAME,))
        if list(config.reward.rule.functions) == [ENVIRONMENT_REWARD]:
            what = "this environment gives no reward of its own: name a function that scores the last message"
            yield Problem(key="reward.function", what=what, given=quoted(ENVIRONMENT_REWARD), involves=(_NAME,))
    elif environment.name is not None and environment.tools:
        what = f'only of the environment "{TOOL_ENVIRONMENT}": a class of your own has its tools as `tools`'
        yield Problem(key="environment.tools", what=what, given=quoted(environment.tools), involves=(_NAME,))


def _room(config: Config) -> Iterator[Problem]:
    environment, turn = config.environment, config.rollout.sampling.max_new_tokens
    if environment.name is not None and environment.max_tokens <= turn:
        what = f"no room for a prompt and one turn of {turn} tokens; set more"
        given, involves = str(environment.max_tokens), ("rollout.sampling.max_new_tokens",)
        yield Problem(key="environment.max_tokens", what=what, given=given, involves=involves)


def _time(config: Config) -> Iterator[Problem]:
    """A rollout that is begun anew must come to its end before its group is given up."""
    environment, limit = config.environment, config.deadlines.rollout_s
    if environment.name is not None and environment.episode_timeout_s + environment.step_timeout_s > limit:
        needed = environment.episode_timeout_s + environment.step_timeout_s
        what = f"an episode may take episode_timeout_s + step_timeout_s = {needed:g} s; set more"
        involves = ("environment.episode_timeout_s", "environment.step_timeout_s")
        yield Problem(key="deadlines.rollout_s", what=what, given=f"{limit:g}", involves=involves)


def _prompts(config: Config) -> Iterator[Problem]:
    if config.environment.name is None:
        return
    for key, value in (("system", config.data.system), ("as_chat", config.data.as_chat)):
        if value is not None:
            what = "the environment writes the messages: let its `reset` do this"
            yield Problem(key=f"data.{key}", what=what, given=quoted(value), involves=(_NAME,))
    if config.learner.max_staleness == 0:
        what = "the synchronous loop that 0 is bit-equal to has no environments yet; set at least 1"
        yield Problem(key="learner.max_staleness", what=what, given="0", involves=(_NAME,))


ENVIRONMENT_RULES = (_known, _keys_of_none, _tools, _room, _time, _prompts)
