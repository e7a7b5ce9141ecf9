"""What an environment raised, in words: its type, its text, and the line of the user's code. Pure.

Guarantees a text whatever the exception is, also one that raises when it is asked for its text.
"""

import sysconfig
import traceback
from pathlib import Path
from typing import Final

from streamrl.rewards.base import shorten

_PLACES: Final = ("stdlib", "platstdlib", "purelib", "platlib")
_OTHERS: Final = (*(sysconfig.get_path(place) for place in _PLACES), str(Path(__file__).parents[2]))
"""Folders of code that is not the user's."""


def raised_by(error: BaseException, what: str) -> str:
    """what: the method that raised it."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a stranger's exception may raise anything when it is read
        text = "(its text cannot be read)"
    return shorten(f"{what} raised {type(error).__name__}: {text}") + _where(error)


def _where(error: BaseException) -> str:
    """The deepest line of the user's own code, where there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((*_OTHERS, "<"))]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
