"""The rewards that come with streamrl, by name. Each is imported when it is asked for: some need a library of their
own."""

from collections.abc import Callable, Mapping

from streamrl.rewards.verifiers.reasoning_gym import PREFIX, reasoning_gym_reward

_VERIFIERS = "streamrl.rewards.verifiers"

BUILT_IN: Mapping[str, str] = {
    "exact_match": f"{_VERIFIERS}.exact:exact_match",
    "contains": f"{_VERIFIERS}.exact:contains",
    "exact": f"{_VERIFIERS}.exact:exact",
    "math": f"{_VERIFIERS}.math:math",
    "gsm8k": f"{_VERIFIERS}.gsm8k:gsm8k",
    "multiple_choice": f"{_VERIFIERS}.multiple_choice:multiple_choice",
    "format": f"{_VERIFIERS}.format:format_match",
    "length": f"{_VERIFIERS}.length:length",
    "overlong": f"{_VERIFIERS}.length:overlong",
    "environment": f"{_VERIFIERS}.environment:environment_reward",
    "code": f"{_VERIFIERS}.code:CodeReward",
    "judge": f"{_VERIFIERS}.judge:judge",
    "http": f"{_VERIFIERS}.http:http",
}

MADE_BY_NAME: Mapping[str, Callable[[str], Callable[..., object]]] = {PREFIX: reasoning_gym_reward}
"""What makes a reward of the rest of a name that begins so."""
