"""What a live run may be scaled to: by the rules of its configuration, and by what its machine has left."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from streamrl.config import ResourceProblems, load_args
from streamrl.config.resources import check_growth
from streamrl.errors import ConfigError

KEYS: Final = {"rollout": "rollout.replicas"}
"""Of each part that can be scaled the key of how many there are."""


def replicas_asked(config_path: Path, now: int, asked: Mapping[str, object]) -> int:
    """How many rollout replicas a run is to have. now: how many it has. asked: by part, as somebody wrote it.

    Raises:
        ConfigError: a part that cannot be scaled, or a number that the configuration could not have. ResourceError:
        the machine has no memory for so many more.
    """
    unknown = sorted(asked.keys() - KEYS.keys())
    if unknown or not asked:
        raise ConfigError(f"{unknown[0] if unknown else 'nothing'!r} cannot be scaled; what can: {', '.join(KEYS)}")
    key, number = KEYS["rollout"], str(asked["rollout"])
    before, after = (load_args(config_path, [f"--{key}", count]) for count in (str(now), number))
    problems = check_growth(before, after)
    if problems:
        raise ResourceProblems(tuple(problems))
    return after.rollout.replicas
