"""Descriptors 0 to 2 of a process, which a daemon, a cron job or `command <&-` may start without.

The next file or socket that such a process opens gets the free number: what is printed then goes into it, and a child
that is given a standard input of its own finds something else in its place.
"""

import os
import sys


def hold_standard_streams() -> None:
    """Have each of them lead somewhere, to nowhere where it was closed. To be called before anything is opened."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python has None in the place of one that it found closed.
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
