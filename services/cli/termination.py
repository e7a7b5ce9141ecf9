"""SIGTERM, as schedulers and containers send it: an order to end in order.

Guarantees: a process that it ends gives exit code 143, also where it is process 1, to which the kernel sends no signal
that it does not handle. Who has more to do at its end has a handler of his own.
"""

import signal
import sys

EXIT_TERMINATED = 128 + signal.SIGTERM


def end_on_termination() -> None:
    """From now on SIGTERM ends this process as `sys.exit` does: what it holds is let go. Where whoever started it has
    SIGTERM ignored, it stays so."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _end)


def _end(_number: int, _frame: object) -> None:
    sys.exit(EXIT_TERMINATED)
