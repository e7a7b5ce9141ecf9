"""The reward that an environment gave."""

from collections.abc import Mapping
from typing import Any


def environment_reward(completion: str, *, environment: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The `reward` of the episode's `Done`, with its components.

    completion: of no interest. environment: the record of the episode, that the replica put into the payload.
    Raises ValueError where the environment gave none."""
    record = environment or {}
    if record.get("reward") is None:
        raise ValueError("the environment gave no reward for this episode")
    return {"reward": record["reward"], **record.get("components", {})}
