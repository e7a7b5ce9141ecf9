"""The rules about the reward model, `[reward.model]`. Pure: a configuration in, problems out, as in `rules`. What its
folder must hold is in `model_facts`, what it must take in `capacity`."""

import math
from collections.abc import Iterator

from streamrl.config.known import REWARD_MODEL
from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config, RewardConfig, RewardModelConfig
from streamrl.config.toml_text import quoted

_FUNCTION, _PATH = "reward.function", "reward.model.path"


def model_is_named(config: Config) -> Iterator[Problem]:
    if config.reward.function == REWARD_MODEL and config.reward.model.path is None:
        what = f"it says not which: set {_PATH} to a folder that `streamrl reward-model` wrote"
        yield Problem(key=_FUNCTION, what=what, given=quoted(REWARD_MODEL), involves=(_PATH,))


def keys_of_no_model(config: Config) -> Iterator[Problem]:
    """What is said of a model that is not there would do nothing."""
    model, default = config.reward.model, RewardModelConfig()
    for name in ("weight", "max_tokens", "rows_at_once"):
        value = getattr(model, name)
        if model.path is None and value != getattr(default, name):
            what = f"there is no reward model; set {_PATH}, or leave this key out"
            yield Problem(key=f"reward.model.{name}", what=what, given=quoted(value), involves=(_PATH,))


def model_weighs_something(config: Config) -> Iterator[Problem]:
    weight = config.reward.model.weight
    if not math.isfinite(weight) or weight == 0.0:
        what = "a score weighs a finite number that is not 0; leave reward.model out if it is to have no part"
        yield Problem(key="reward.model.weight", what=what, given=quoted(weight))


def rows_of_the_synchronous_loop(config: Config) -> Iterator[Problem]:
    """Which rollouts are scored together is not what it is in the reference loop."""
    model = config.reward.model
    if config.learner.max_staleness == 0 and model.path is not None and model.rows_at_once > 1:
        what = "max_staleness = 0 is bit-equal by contract, and rows that share a forward round together; set 1"
        given, involves = str(model.rows_at_once), ("learner.max_staleness",)
        yield Problem(key="reward.model.rows_at_once", what=what, given=given, involves=involves)


def several_functions(config: Config) -> Iterator[Problem]:
    reward, key = config.reward, "reward.functions"
    if reward.functions is None:
        return
    if reward.function != RewardConfig().function:
        what = "two rewards: set one of reward.function and reward.functions"
        yield Problem(key=key, what=what, given=quoted(reward.functions), involves=(_FUNCTION,))
    if not reward.functions:
        yield Problem(key=key, what="no function; name one, or leave this key out", given="{}")
    for name, weight in reward.functions.items():
        if not math.isfinite(weight) or weight == 0.0:
            what = f"{name} weighs a finite number that is not 0; leave it out if it is to have no part"
            yield Problem(key=key, what=what, given=quoted(weight))
        if name == REWARD_MODEL:
            what = f"{REWARD_MODEL} is no function; set {_PATH} and reward.model.weight beside the others"
            yield Problem(key=key, what=what, given=quoted(name), involves=(_PATH,))


def options_of_functions(config: Config) -> Iterator[Problem]:
    names = config.reward.rule.functions
    for name in config.reward.options or {}:
        if name not in names:
            allowed = ", ".join(map(quoted, names))
            yield Problem(key="reward.options", what="no such function here", given=quoted(name), allowed=allowed)


REWARD_RULES = (
    several_functions,
    options_of_functions,
    model_is_named,
    keys_of_no_model,
    model_weighs_something,
    rows_of_the_synchronous_loop,
)
