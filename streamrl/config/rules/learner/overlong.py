"""The rules about `[learner.overlong]`. Pure: a configuration in, problems out, as in `rules`."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema.learner import OverlongConfig
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

_HERE = "learner.overlong"
_BUDGET = "rollout.sampling.max_new_tokens"


def buffer_fits_the_budget(config: Config) -> Iterator[Problem]:
    buffer, budget = config.learner.overlong.buffer, config.rollout.sampling.max_new_tokens
    if buffer > budget:
        what = f"it would begin before the first token: {_BUDGET} is {budget}; set at most that"
        yield Problem(key=f"{_HERE}.buffer", what=what, given=str(buffer), involves=(_BUDGET,))


def penalty_has_a_buffer(config: Config) -> Iterator[Problem]:
    overlong = config.learner.overlong
    if not overlong.buffer and overlong.penalty != OverlongConfig().penalty:
        what = f"no token costs it: set {_HERE}.buffer, or leave it out"
        yield Problem(key=f"{_HERE}.penalty", what=what, given=quoted(overlong.penalty))


def punished_rewards_are_below_0(config: Config) -> Iterator[Problem]:
    """A wrong answer of full length would have a negative reward."""
    if config.learner.overlong.buffer and config.learner.algorithm.advantage == "maxrl":
        what = '"maxrl" takes no reward below 0, which a punished one may be; set 0, or another advantage'
        involves = ("learner.algorithm.advantage",)
        yield Problem(key=f"{_HERE}.buffer", what=what, given=str(config.learner.overlong.buffer), involves=involves)


OVERLONG_RULES = (buffer_fits_the_budget, penalty_has_a_buffer, punished_rewards_are_below_0)
