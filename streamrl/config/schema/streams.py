"""Streams of prompts: their names, and the share of the groups that each gets."""

from typing import NamedTuple

TASK = "train"
"""The stream of the run's own data."""
DEFAULT_STREAM = "clients"
"""Of a submission that names none."""
OFFERED_STREAM = "clients:trajectories"
"""Of groups that were made elsewhere: they are given, not drawn. No client can name it: see `STREAM_NAME`."""
STREAM_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
"""What a stream may be called: what a name in the log may be, or no row of it could be written."""


class Share(NamedTuple):
    """Of one stream. weight: groups that it gets for each one of a stream of weight 1; 0 for none. priority: a stream
    of a lower one gets nothing while this one has prompts."""

    weight: float = 1.0
    priority: int = 0
