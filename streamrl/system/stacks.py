"""Has a process show its stacks when it is sent a signal, whatever it does at that moment, and when it crashes.

    answer("queue", folder)     ->  folder/queue.<pid>, empty; the stacks of all threads are in it after each SHOW, and
                                    after a fault in C that ends it (SIGSEGV, SIGFPE, SIGABRT, SIGBUS, SIGILL)

Guarantees: the stacks are written by the signal's own handler, in C, so a thread that waits in C, holds a lock or the
interpreter's own does not keep them back. Nothing else of the process changes: the call that was interrupted goes on.
Who sends the signal, and reads, is not known here.
"""

import faulthandler
import os
import signal
import sys
from pathlib import Path

# A real-time one: Ray, torch, the servers and the programs of users have uses for SIGUSR1 and SIGUSR2 of their own.
SHOW = signal.SIGRTMIN + 7 if sys.platform == "linux" else signal.SIGUSR2

_own: int | None = None
"""The descriptor of the file that this process answers in."""


def answer(name: str, folder: Path) -> Path:
    """Answer from now on, in a file of this process in `folder`, which is made when absent. Called again, it answers
    there alone."""
    global _own
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.{os.getpid()}"
    # Appended to: whoever has read it cuts it, and the next answer begins at its new end.
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    faulthandler.register(SHOW, file=opened, all_threads=True, chain=False)
    faulthandler.enable(file=opened, all_threads=True)
    if _own is not None:
        os.close(_own)
    _own = opened
    return path
