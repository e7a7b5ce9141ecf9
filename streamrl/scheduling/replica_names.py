"""What the replicas of a run are called: in its files, in what it tells, and among its parts."""

from typing import Final

REPLICA_NAME: Final = "rollout-[0-9]+"
"""Of any replica, as a regular expression."""


def replica_name(number: int) -> str:
    """Of the replica of a number, from 0; another process that takes its place has it too."""
    return f"rollout-{number}"
