"""A reward that waits at a gate in the user's folder until the test opens it."""

import os
from pathlib import Path

REWARD = '''
"""Reward of the tests, behind a gate: who reads there waits as long as it is a pipe."""

import os

from dense import reward


def waits_in_the_users_code(completion, **facts):
    with open(os.path.join(os.path.dirname(__file__), "gate")) as gate:
        gate.read()
    return reward(completion, **facts)
'''
FUNCTION = "gated:waits_in_the_users_code"


def build(folder: Path) -> None:
    """The reward's module, and an open gate, in a user's folder."""
    (folder / "gated.py").write_text(REWARD)
    (folder / "gate").touch()


def shut(folder: Path) -> None:
    """Whoever comes to the gate from now on waits."""
    os.mkfifo(folder / "shut")
    (folder / "shut").replace(folder / "gate")


def reopen(folder: Path) -> None:
    """Whoever waits at the shut gate goes on, and nobody waits there again."""
    # For both ways, so that it waits for nobody; closed, whoever reads there goes on.
    opened = os.open(folder / "gate", os.O_RDWR)
    (folder / "open").touch()
    (folder / "open").replace(folder / "gate")
    os.close(opened)
