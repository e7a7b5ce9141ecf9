"""What a client says of trajectories that it scored, and what the run says of them."""

from collections.abc import Mapping
from typing import Any

import msgspec


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a trajectory. number: the run's own for it. state: waiting (durable, for the others of its group),
    gathered (into the group of the number `group`, which is trained), or declined, for `reason`. waiting: how many of
    its group's name do, of `group_size`. branches, turns: of a session, the first time that it is rewarded."""

    number: int
    state: str
    group_size: int
    waiting: int = 0
    group: int | None = None
    reason: str = ""
    branches: int | None = None
    turns: int | None = None


def reward_of(reward: float, group: str | None, components: Mapping[str, float] | None) -> dict[str, Any]:
    """The body that says what a session's reward is."""
    said: dict[str, Any] = {"reward": reward}
    if group is not None:
        said["group"] = group
    if components:
        said["components"] = dict(components)
    return said
