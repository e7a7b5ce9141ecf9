"""The rules about the advantages that take more than the rewards of a group: `gdpo` their components, `remax` a greedy
rollout. Pure: a configuration in, problems out, as in `rules`."""

import math
from collections.abc import Iterator

from streamrl.config.known import REWARD_MODEL, REWARDS
from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config
from streamrl.config.toml_text import dotted, quoted

_ADVANTAGE = "learner.algorithm.advantage"
_COMPONENTS = "learner.algorithm.components"


def components_are_named(config: Config) -> Iterator[Problem]:
    algorithm = config.learner.algorithm
    if algorithm.advantage == "gdpo" and not algorithm.components:
        what = (
            f"each component of the reward is normalised by itself: name them, with their weights, in [{_COMPONENTS}]"
        )
        yield Problem(key=_ADVANTAGE, what=what, given=quoted("gdpo"), involves=(_COMPONENTS,))
    elif algorithm.advantage != "gdpo" and algorithm.components is not None:
        what = f'"{algorithm.advantage}" takes the reward as a whole; set advantage = "gdpo", or leave it out'
        yield Problem(key=_COMPONENTS, what=what, given=quoted(algorithm.components), involves=(_ADVANTAGE,))


def components_weigh_something(config: Config) -> Iterator[Problem]:
    for name, weight in (config.learner.algorithm.components or {}).items():
        if not math.isfinite(weight) or weight == 0.0:
            what = "a component weighs a finite number that is not 0; leave out what is to have no part"
            yield Problem(key=f"{_COMPONENTS}.{dotted([name])}", what=what, given=quoted(weight))


def reward_has_components(config: Config) -> Iterator[Problem]:
    name = config.reward.function
    beside_a_model = config.reward.model.path is not None and name != REWARD_MODEL
    if config.learner.algorithm.advantage == "gdpo" and name in REWARDS and not beside_a_model:
        what = f'"{name}" is one number; name a function of your own that returns a dict of the components'
        yield Problem(key="reward.function", what=what, given=quoted(name), involves=(_ADVANTAGE,))


def reward_is_not_changed(config: Config) -> Iterator[Problem]:
    """What is added to a reward has a place where the reward has one, and both rollouts of a comparison pay it."""
    learner = config.learner
    if learner.algorithm.advantage == "gdpo" and learner.overlong.buffer:
        what = '"gdpo" has no part for the reward as a whole; return what length costs as a component, and set 0'
        given = str(learner.overlong.buffer)
        yield Problem(key="learner.overlong.buffer", what=what, given=given, involves=(_ADVANTAGE,))
    if learner.algorithm.advantage == "gdpo" and learner.algorithm.kl_in_reward:
        what = '"gdpo" has no part for the reward as a whole; set "loss"'
        yield Problem(key="learner.algorithm.kl_in", what=what, given=quoted("reward"), involves=(_ADVANTAGE,))
    if learner.algorithm.has_greedy_sample and learner.algorithm.kl_in_reward:
        what = 'the greedy rollout of "remax" is no sample that a divergence could be estimated from; set "loss"'
        yield Problem(key="learner.algorithm.kl_in", what=what, given=quoted("reward"), involves=(_ADVANTAGE,))


COMPONENT_RULES = (
    components_are_named,
    components_weigh_something,
    reward_has_components,
    reward_is_not_changed,
)
