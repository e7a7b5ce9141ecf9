"""What scores a batch of items, as `[reward]` describes it: functions, a reward model, or both.

A module of the user's is imported, and torch only where there is a reward model.
"""

from collections.abc import Collection, Mapping
from inspect import isfunction
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from streamrl.config.known import CODE_REWARD, REWARD_MODEL
from streamrl.config.schema.fields import allowed
from streamrl.config.schema.run import RewardModelConfig, RewardRule
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ConfigError
from streamrl.rewards.builtin import BUILT_IN
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
    function: str | RewardRule,
    model: RewardModelConfig,
    sandbox: SandboxConfig = USUAL_SANDBOX,
    columns: Collection[str] | None = None,
) -> AnyScorer:
    """function, model, sandbox: `reward.rule`, or the name of one function, `reward.model` and `sandbox`. columns: the
    keys of the rows' payloads, which the functions are called with; None where they are not known. Raises ConfigError
    for what cannot be had."""
    rule = rule_of(function)
    functions = _functions(rule, sandbox, columns)
    if model.path is None:
        if functions is None:
            raise ConfigError(f"reward.function = {rule.name!r} needs reward.model.path, a reward model's folder")
        return functions
    # Here and not above: it takes seconds, which a rule alone has no use for.
    from streamrl.rewards.model import RewardModel

    folder = Path(model.path).expanduser()
    loaded = RewardModel(folder, max_tokens=model.max_tokens, rows_at_once=model.rows_at_once)
    return WeightedScorer(loaded, model.weight, functions)


def _functions(
    rule: RewardRule, config: SandboxConfig, columns: Collection[str] | None
) -> Scorer | CombinedScorer | None:
    """None where there is no function, but a reward model alone."""
    unknown = [name for name in rule.options if name not in rule.functions]
    if unknown:
        raise ConfigError(f"reward.options has {unknown[0]!r}, and the functions are {', '.join(rule.functions)}")
    if list(rule.functions) == [REWARD_MODEL]:
        return None
    sandbox = make_sandbox(config)
    scorers = {name: _scorer(name, rule.options.get(name, {}), sandbox) for name in rule.functions}
    for scorer in scorers.values() if columns is not None else ():
        scorer.require(columns or ())
    if CODE_REWARD in rule.functions:
        sandbox.start()
    if list(rule.functions.values()) == [1.0]:
        return next(iter(scorers.values()))
    return CombinedScorer({name: (scorers[name], weight) for name, weight in rule.functions.items()})


def _scorer(name: str, options: Mapping[str, Any], sandbox: AnySandbox) -> Scorer:
    function = _function(name, sandbox)
    scorer = Scorer(function, options, name)
    if name in BUILT_IN:
        _require_values(name, function, options)
    return scorer


def _require_values(name: str, function: RewardFunction, options: Mapping[str, Any]) -> None:
    """Refuse an option of a built-in reward whose value is of another type than its parameter."""
    types = get_type_hints(function if isfunction(function) else type(function).__call__)
    for option, value in options.items():
        wanted = types.get(option, Any)
        try:
            msgspec.convert(value, wanted)
        except msgspec.ValidationError as error:
            what = f"reward.options: {option!r} of reward {name!r} is {value!r}, and it should be {allowed(wanted)}"
            raise ConfigError(what) from error


def _function(name: str, sandbox: AnySandbox) -> RewardFunction:
    """The function; one that runs programs has the sandbox, and closes it."""
    found: Any = resolve_reward(name)
    if name != CODE_REWARD:
        function: RewardFunction = found
        return function
    made: RewardFunction = found(sandbox)
    return made
