"""The rules about `[learner.filter]`. Pure: a configuration in, problems out, as in `rules`."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

_HERE = "learner.filter"


def filter_has_a_window(config: Config) -> Iterator[Problem]:
    low, high = config.learner.filter.low, config.learner.filter.high
    if low is not None and high is not None and low > high:
        what = f"no mean reward lies between it and high = {high:g}, so every group is dropped; set at most that"
        yield Problem(key=f"{_HERE}.low", what=what, given=quoted(low), involves=(f"{_HERE}.high",))


def filter_keeps_something(config: Config) -> Iterator[Problem]:
    """The reward of a group of one is equal to itself."""
    if config.learner.filter.zero_variance and config.rollout.group_size < 2:
        what = "a group of one rollout has no variance, so every group is dropped; leave it out, or raise the size"
        involves = ("rollout.group_size",)
        yield Problem(key=f"{_HERE}.zero_variance", what=what, given="true", involves=involves)


def limit_has_a_filter(config: Config) -> Iterator[Problem]:
    rule = config.learner.filter
    if not rule.drops and rule.limit != type(rule)().limit:
        what = "nothing is filtered that it could limit; set zero_variance, low or high, or leave it out"
        yield Problem(key=f"{_HERE}.limit", what=what, given=str(rule.limit))


FILTER_RULES = (filter_has_a_window, filter_keeps_something, limit_has_a_filter)
