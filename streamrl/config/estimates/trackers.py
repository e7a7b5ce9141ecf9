"""Whether the trackers of a configuration can start on this machine: their packages and their keys."""

import os
from collections.abc import Mapping
from pathlib import Path

from streamrl.config.problems import MACHINE, Problem
from streamrl.config.schema.run import Config


def check_trackers(config: Config, environment: Mapping[str, str] | None = None) -> list[Problem]:
    """What keeps trackers from starting, each with the way out. environment: this process's own where it is absent."""
    if not config.observe.all_trackers:
        return []
    from streamrl.observability.trackers.requirements import faults  # a run without trackers does without it

    variables = os.environ if environment is None else environment
    home = Path(variables.get("HOME") or Path.home())
    return [
        Problem(key="observe.trackers", what=what, file=MACHINE)
        for what in faults(config.observe.all_trackers, variables, home)
    ]
