"""The three packages of streamrl must lie side by side: `services` and `buffers` are names that others use too.

Imports none of them: a package of somebody else's must not run for being looked at.
"""

from importlib.util import find_spec
from pathlib import Path

import streamrl
from streamrl.errors import ConfigError

NEIGHBOURS = ("buffers", "services")


def check_origins() -> None:
    """Raise ConfigError, naming both places, when another package shadows one of ours."""
    home = Path(streamrl.__file__).parents[1]
    for name in NEIGHBOURS:
        spec = find_spec(name)
        place = None if spec is None or spec.origin is None else Path(spec.origin).parents[1]
        if place != home:
            raise ConfigError(
                f"package {name!r} comes from {place}, not from {home}: another package of that name shadows "
                "streamrl's; take it off PYTHONPATH, or start from another folder"
            )
