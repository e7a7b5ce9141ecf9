"""The rules about the implicit reward model, `[learner.prime]`. Pure: a configuration in, problems out."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.rules.learner.critic import ADVANTAGE, betas_below_1, unused_keys
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import quoted

_PRIME = "learner.prime"


def implicit_rewards_are_enabled(config: Config) -> Iterator[Problem]:
    """What is said of a model that is not there would do nothing."""
    algorithm = config.learner.algorithm
    if not algorithm.has_implicit_rewards:
        what = f'"{algorithm.advantage}" has no implicit reward model; set {ADVANTAGE} = "prime", or leave this key out'
        yield from unused_keys(config.learner.prime, _PRIME, what)


def reference_stands_still(config: Config) -> Iterator[Problem]:
    """Rewards are measured from it: as it moved, all of them would, whatever the model had learned."""
    algorithm = config.learner.algorithm
    if algorithm.has_implicit_rewards and algorithm.reference.kind == "average":
        key, what = (
            "learner.algorithm.reference.kind",
            'the rewards of "prime" are measured from a policy that stands still',
        )
        yield Problem(key=key, what=f'{what}; set "initial" or "path"', given='"average"', involves=(ADVANTAGE,))


def outcomes_as_given(config: Config) -> Iterator[Problem]:
    buffer = config.learner.overlong.buffer
    if config.learner.algorithm.has_implicit_rewards and buffer:
        what = '"prime" learns rewards from 0 to 1, and a penalty takes one below; set 0, or mask_truncated = true'
        yield Problem(key="learner.overlong.buffer", what=what, given=quoted(buffer), involves=(ADVANTAGE,))


def betas_of_the_implicit_reward_model(config: Config) -> Iterator[Problem]:
    yield from betas_below_1(config.learner.prime.optimizer, _PRIME)


PRIME_RULES = (
    implicit_rewards_are_enabled,
    reference_stands_still,
    outcomes_as_given,
    betas_of_the_implicit_reward_model,
)
