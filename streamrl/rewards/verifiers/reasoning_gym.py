"""Tasks of `reasoning-gym`: each scores its own answers."""

from collections.abc import Callable
from typing import Any

from streamrl.errors import ConfigError

PREFIX = "reasoning_gym:"


def reasoning_gym_reward(name: str) -> Callable[..., float]:
    """The reward of one of its data sets: what `score_answer` says of a completion and its entry.

    The payload is the entry: `question`, `answer`, `metadata`. Raises ConfigError for a data set that it does not have,
    and where the package is missing."""
    try:
        import reasoning_gym  # here: few have it, and it takes two seconds
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            f"reward {PREFIX}{name} needs the package reasoning-gym: pip install reasoning-gym"
        ) from error
    if name not in DATASETS:
        raise ConfigError(f"reward {PREFIX}{name}: reasoning-gym has no data set {name!r}")
    data_set: Any = reasoning_gym.create_dataset(name, size=1, seed=0)

    def reward(completion: str, *, answer: object, prompt: str = "", question: str = "", metadata: Any = None) -> float:
        entry = {"question": question or prompt, "answer": answer, "metadata": metadata or {}}
        return float(data_set.score_answer(answer=completion, entry=entry))

    return reward
