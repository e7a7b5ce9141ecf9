"""The environment of the processes that a run starts: that of who starts it, without what breaks Ray or us.

Ray's own processes are Python too, and obey what the user says to his: without docstrings, which one of its command
lines is made of, its node does not come up; a warning as an error ends it. The user's reward and environment run in
children of their own and get what he said.
"""

import os
from collections.abc import Mapping

from streamrl.system.child_process import USERS_WARNINGS

LEFT_OUT: Mapping[str, str] = {
    "PYTHONOPTIMIZE": "Ray does not start without docstrings and assertions",
    "PYTHONINSPECT": "a process that waits for a person at its end does not end",
    "PYTHONWARNINGS": "Ray's own warnings would end it; rewards and environments get it",
    "PYTHONDEVMODE": "Ray's own warnings would fill the logs",
    "PYTHONVERBOSE": "each import would be told in the logs",
    "PYTHONPROFILEIMPORTTIME": "each import would be told in the logs",
    "PYTHONTRACEMALLOC": "each allocation of Ray and of torch would be recorded",
    "PYTHONDUMPREFS": "each object would be told in the logs",
    "PYTHONCASEOK": "modules of other names would be found",
}
"""Variables, and why they are left out."""
WARNINGS = "PYTHONWARNINGS"
IMPORTS = "PYTHONPATH"


def launch_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Of the watcher and the owner, and through them of Ray and all parts."""
    kept = {name: value for name, value in environment.items() if name not in LEFT_OUT}
    if path := environment.get(IMPORTS):
        # Relative folders begin where the user is, and the parts of a run work in another one.
        kept[IMPORTS] = os.pathsep.join(map(os.path.abspath, path.split(os.pathsep)))
    if environment.get(WARNINGS):
        kept[USERS_WARNINGS] = environment[WARNINGS]
    return kept


def left_out(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable that is set and does not reach the parts of the run."""
    return [
        f"{name} does not reach the parts of a run: {why}" for name, why in LEFT_OUT.items() if environment.get(name)
    ]
