"""The rules about the critic, `[learner.critic]`, and about any judge of tokens. Pure: a configuration in, problems
out."""

from collections.abc import Iterator

from streamrl.config.problems import Problem
from streamrl.config.rules.learner.algorithm import ROW_LOSSES
from streamrl.config.schema.fields import leaves
from streamrl.config.schema.learner import CriticConfig, OptimizerConfig
from streamrl.config.schema.run import Config
from streamrl.config.schema.table import Table
from streamrl.config.toml_text import quoted

_CRITIC, ADVANTAGE = "learner.critic", "learner.algorithm.advantage"


def critic_without_gae(config: Config) -> Iterator[Problem]:
    """What is said of a critic that is not there would do nothing."""
    algorithm = config.learner.algorithm
    if not algorithm.has_critic:
        what = f'"{algorithm.advantage}" has no critic; set {ADVANTAGE} = "gae", or leave this key out'
        yield from unused_keys(config.learner.critic, _CRITIC, what)


def unused_keys(table: Table, name: str, what: str, involves: tuple[str, ...] = (ADVANTAGE,)) -> Iterator[Problem]:
    """`what` of every key of a table that is not as it is by default."""
    for leaf in leaves(type(table)):
        value = _value(table, leaf.name)
        if value != leaf.default:
            yield Problem(key=f"{name}.{leaf.name}", what=what, given=quoted(value), involves=involves)


def _value(table: Table, name: str) -> object:
    value: object = table
    for part in name.split("."):
        value = getattr(value, part)
    return value


def token_advantages_need_token_ratios(config: Config) -> Iterator[Problem]:
    """A row loss has one ratio, and so one direction, for all tokens of a row."""
    algorithm = config.learner.algorithm
    if algorithm.has_auxiliary_model and algorithm.loss in ROW_LOSSES:
        what = (
            f'"{algorithm.advantage}" judges each token by itself, and the ratio of "{algorithm.loss}" is the row\'s; '
            'set a loss of tokens ("ppo"), or an advantage of rows'
        )
        given = quoted(algorithm.advantage)
        yield Problem(key=ADVANTAGE, what=what, given=given, involves=("learner.algorithm.loss",))


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
    yield from betas_below_1(config.learner.critic.optimizer, _CRITIC)


def betas_below_1(optimizer: OptimizerConfig, name: str) -> Iterator[Problem]:
    """name: of the table that the optimizer is of."""
    if max(optimizer.betas) >= 1.0:
        what = "a beta of 1 never forgets, and the bias correction divides by zero; set both below 1"
        yield Problem(key=f"{name}.optimizer.betas", what=what, given=quoted(optimizer.betas))


CRITIC_RULES = (
    critic_without_gae,
    token_advantages_need_token_ratios,
    values_before_the_policy,
    one_lambda,
    betas_of_the_critic,
)
