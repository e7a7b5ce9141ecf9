"""The reward that a client sends for a trajectory, and the answer of the run."""

from collections.abc import Mapping
from typing import Any

import msgspec


class TrajectoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a trajectory in the run.

    Attributes:
        number: Its number in the run.
        state: `waiting` for the rest of its group, `gathered` into a group that is trained, or `declined`.
        group_size: The number of trajectories that make a group.
        waiting: How many of the same group name wait, this one included.
        group: The number of the training group. None before it is gathered.
        reason: Why it was declined, else "".
        branches: The number of rows into which a session forked. None for a repeated reward.
        turns: The number of calls of a session. None for a repeated reward.
    """

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
