"""The rules about the critic, `[learner.critic]`. Pure: a configuration in, problems out."""

from collections.abc import Iterator

from streamrl.config.algorithm_rules import ROW_LOSSES
from streamrl.config.fields import leaves
from streamrl.config.learner_tables import CriticConfig
from streamrl.config.problems import Problem
from streamrl.config.schema import Config
from streamrl.config.toml_text import quoted

_CRITIC, _ADVANTAGE = "learner.critic", "learner.algorithm.advantage"


def critic_without_gae(config: Config) -> Iterator[Problem]:
    """What is said of a critic that is not there would do nothing."""
    algorithm = config.learner.algorithm
    if algorithm.has_critic:
        return
    for leaf in leaves(CriticConfig):
        value = _value(config.learner.critic, leaf.name)
        if value != leaf.default:
            what = f'"{algorithm.advantage}" has no critic; set {_ADVANTAGE} = "gae", or leave this key out'
            yield Problem(key=f"{_CRITIC}.{leaf.name}", what=what, given=quoted(value), involves=(_ADVANTAGE,))


def _value(table: CriticConfig, name: str) -> object:
    value: object = table
    for part in name.split("."):
        value = getattr(value, part)
    return value


def gae_judges_tokens(config: Config) -> Iterator[Problem]:
    """A row loss has one ratio, and so one direction, for all tokens of a row."""
    algorithm = config.learner.algorithm
    if algorithm.has_critic and algorithm.loss in ROW_LOSSES:
        what = (
            f'"gae" judges each token by itself, and the ratio of "{algorithm.loss}" is the row\'s; set a loss of '
            'tokens ("ppo"), or an advantage of rows'
        )
        yield Problem(key=_ADVANTAGE, what=what, given='"gae"', involves=("learner.algorithm.loss",))


def values_before_the_policy(config: Config) -> Iterator[Problem]:
    learner = config.learner
    if learner.algorithm.has_critic and learner.critic.warmup_steps >= learner.steps:
        what = f"the policy is never trained within learner.steps = {learner.steps}; set less"
        given = str(learner.critic.warmup_steps)
        yield Problem(key=f"{_CRITIC}.warmup_steps", what=what, given=given, involves=("learner.steps",))


def one_lambda(config: Config) -> Iterator[Problem]:
    critic = config.learner.critic
    default = next(leaf.default for leaf in leaves(CriticConfig) if leaf.name == "policy_lambda")
    if critic.length_alpha is not None and critic.policy_lambda != default:
        what = f"{_CRITIC}.length_alpha = {critic.length_alpha:g} says what it is for each row; leave one of them out"
        given, involves = quoted(critic.policy_lambda), (f"{_CRITIC}.length_alpha",)
        yield Problem(key=f"{_CRITIC}.policy_lambda", what=what, given=given, involves=involves)


def betas_of_the_critic(config: Config) -> Iterator[Problem]:
    betas = config.learner.critic.optimizer.betas
    if max(betas) >= 1.0:
        what = "a beta of 1 never forgets, and the bias correction divides by zero; set both below 1"
        yield Problem(key=f"{_CRITIC}.optimizer.betas", what=what, given=quoted(betas))


CRITIC_RULES = (critic_without_gae, gae_judges_tokens, values_before_the_policy, one_lambda, betas_of_the_critic)
