"""Process 1 of a container that has no init of its own: it takes the exit codes of orphans, and passes signals on.

The kernel hands every orphan of a container to process 1 and leaves it there, dead, until somebody takes its exit code.
A program that only waits for its own children lets them pile up.
"""

import os
import signal
from collections.abc import Set

_PASSED_ON = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH}
)


def be_init_as_process_1() -> None:
    """In process 1 the program goes on in a child, and this process ends with the child's exit code, 128 + its number
    where a signal ended it. In any other process nothing happens. To be called before there are threads."""
    if os.getpid() == 1:
        go_on_in_child()


def go_on_in_child() -> None:
    """Return in a child, which leads a process group in the foreground; this process is its init."""
    waiting = _PASSED_ON | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*waiting, signal.SIGTTOU})
    child = os.fork()
    if child:
        os._exit(_serve(child, waiting))
    # A terminal sends Ctrl-C to the group in the foreground: not to the init as well, which would pass it on once more.
    os.setpgid(0, 0)
    if os.isatty(0):
        _take_terminal()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _take_terminal() -> None:
    try:
        os.tcsetpgrp(0, os.getpgrp())
    except OSError:
        return  # the terminal of somebody else's session sends us nothing


def _serve(child: int, waiting: Set[signal.Signals]) -> int:
    """Until the child has ended. Returns its exit code."""
    while True:
        number = signal.sigwaitinfo(waiting).si_signo
        if number != signal.SIGCHLD:
            os.kill(child, number)
        elif (code := _reap(child)) is not None:
            return code


def _reap(child: int) -> int | None:
    """Take the exit codes of all that have ended: that of `child`, None while it lives."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == child:
            exited = os.waitstatus_to_exitcode(status)
            code = exited if exited >= 0 else 128 - exited
