"""What scores a batch of items, as `[reward]` describes it: a rule, a reward model, or both.

A module of the user's is imported, and torch only where there is a reward model.
"""

from pathlib import Path

from streamrl.config.known import REWARD_MODEL
from streamrl.config.schema import RewardModelConfig
from streamrl.errors import ConfigError
from streamrl.rewards.scorer import Scorer, resolve_reward
from streamrl.rewards.weighted import WeightedScorer

AnyScorer = Scorer | WeightedScorer


def make_scorer(function: str, model: RewardModelConfig) -> AnyScorer:
    """function, model: `reward.function` and `reward.model`. Raises ConfigError for what cannot be had."""
    rule = None if function == REWARD_MODEL else Scorer(resolve_reward(function))
    if model.path is None:
        if rule is None:
            raise ConfigError(f"reward.function = {function!r} needs reward.model.path, a reward model's folder")
        return rule
    # Here and not above: it takes seconds, which a rule alone has no use for.
    from streamrl.rewards.model import RewardModel

    folder = Path(model.path).expanduser()
    loaded = RewardModel(folder, max_tokens=model.max_tokens, rows_at_once=model.rows_at_once)
    return WeightedScorer(loaded, model.weight, rule)
