"""Reading files that a live run writes at the same moment."""

from collections.abc import Callable
from typing import Final, TypeVar

from streamrl.errors import DataError

LOOKS: Final = 3
T = TypeVar("T")


def read_again(read: Callable[[], T]) -> T:
    """What `read` returns; what it calls damage is looked at again, up to three times in all.

    A reader may pass a page right before it is written and the next right after, and then sees a bad frame with a
    good one behind it. That moment passes; damage stays.

    Raises:
        DataError: every look said so.
    """
    for _ in range(LOOKS - 1):
        try:
            return read()
        except DataError:
            continue
    return read()
