"""What scores a batch of items, as `[reward]` describes it: functions, a reward model, or both.

A module of the user's is imported, and torch only where there is a reward model.
"""

from pathlib import Path
from typing import Any

from streamrl.config.known import CODE_REWARD, REWARD_MODEL
from streamrl.config.schema.run import RewardModelConfig, RewardRule
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ConfigError
from streamrl.rewards.combined import CombinedScorer
from streamrl.rewards.scorer import Scorer, resolve_reward
from streamrl.rewards.signatures import RewardFunction
from streamrl.rewards.weighted import WeightedScorer
from streamrl.sandbox.sandbox import AnySandbox, make_sandbox

USUAL_SANDBOX = SandboxConfig()
AnyScorer = Scorer | CombinedScorer | WeightedScorer


def rule_of(function: str | RewardRule) -> RewardRule:
    """The rule that is one function, or that is given."""
    return function if isinstance(function, RewardRule) else RewardRule({function: 1.0})


def make_scorer(
    function: str | RewardRule, model: RewardModelConfig, sandbox: SandboxConfig = USUAL_SANDBOX
) -> AnyScorer:
    """function, model, sandbox: `reward.rule`, or the name of one function, `reward.model` and `sandbox`. Raises
    ConfigError for what cannot be had."""
    rule = rule_of(function)
    functions = _functions(rule, sandbox)
    if model.path is None:
        if functions is None:
            raise ConfigError(f"reward.function = {rule.name!r} needs reward.model.path, a reward model's folder")
        return functions
    # Here and not above: it takes seconds, which a rule alone has no use for.
    from streamrl.rewards.model import RewardModel

    folder = Path(model.path).expanduser()
    loaded = RewardModel(folder, max_tokens=model.max_tokens, rows_at_once=model.rows_at_once)
    return WeightedScorer(loaded, model.weight, functions)


def _functions(rule: RewardRule, config: SandboxConfig) -> Scorer | CombinedScorer | None:
    """None where there is no function, but a reward model alone."""
    unknown = [name for name in rule.options if name not in rule.functions]
    if unknown:
        raise ConfigError(f"reward.options has {unknown[0]!r}, and the functions are {', '.join(rule.functions)}")
    if list(rule.functions) == [REWARD_MODEL]:
        return None
    sandbox = make_sandbox(config)
    scorers = {name: Scorer(_function(name, sandbox), rule.options.get(name)) for name in rule.functions}
    if CODE_REWARD in rule.functions:
        sandbox.start()
    if list(rule.functions.values()) == [1.0]:
        return next(iter(scorers.values()))
    return CombinedScorer({name: (scorers[name], weight) for name, weight in rule.functions.items()})


def _function(name: str, sandbox: AnySandbox) -> RewardFunction:
    """The function; one that runs programs has the sandbox, and closes it."""
    found: Any = resolve_reward(name)
    if name != CODE_REWARD:
        function: RewardFunction = found
        return function
    made: RewardFunction = found(sandbox)
    return made
