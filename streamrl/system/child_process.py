"""What every child process that runs a user's code has in common: its environment, its limits, its end.

Guarantees that a child dies with its parent, as does what it forks, and that it stays within its address space.
"""

import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from streamrl.errors import ComponentError
from streamrl.system.stacks import answer

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_CERTIFICATES: Final = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
KEPT_ENVIRONMENT: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV"),
    *_CERTIFICATES,  # whom a machine trusts: without them a judge cannot be reached from many a company's network
)
SET_ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONHASHSEED": "0",  # a reward that walks a set gives the same answer in every child
}


USERS_WARNINGS: Final = "STREAMRL_PYTHONWARNINGS"
"""Holds what a user says in PYTHONWARNINGS, on the way through processes that must not heed it."""


class ChildOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What every child is told on its command line, as JSON.

    channel: number of the inherited socket. parent: pid of the process that started it. import_paths: folders added to
    the end of `sys.path`. memory_bytes: limit of the address space. stacks: folder in which it answers who asks for its
    stacks (`streamrl.system.stacks`); "" for none."""

    channel: int
    parent: int
    memory_bytes: int
    import_paths: list[str] = []
    stacks: str = ""


def start_child(
    program: str, what: str, order: Callable[[int], ChildOrder], **variables: str
) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Start `python -P -m PROGRAM ORDER`, leader of a session of its own, and our end of its channel, which does not
    block. what: it is, for the message. order: of the number of its end. variables: of its environment, beside the
    usual ones. Raises ComponentError."""
    ours, theirs = socket.socketpair()
    with theirs:
        text = json.dumps(msgspec.to_builtins(order(theirs.fileno())))
        try:
            process = subprocess.Popen(
                # -P: the current folder is not on the path, so no file that lies there can stand in for a library.
                [sys.executable, "-P", "-m", program, text],
                stdin=subprocess.DEVNULL,
                stdout=2,
                stderr=2,
                pass_fds=[theirs.fileno()],
                env={**child_environment(), **variables},
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise ComponentError(f"{what} cannot be started: {error}") from error
    ours.setblocking(False)
    return process, ours


def begin_child(order: ChildOrder, name: str) -> socket.socket:
    """In the child, first of all: die with the parent, keep the limits, find the user's modules; the channel. name: for
    who asks for its stacks."""
    die_with(order.parent)
    channel = socket.socket(fileno=order.channel)
    channel.set_inheritable(False)
    if order.stacks:
        answer(name, Path(order.stacks))
    guard_forks(channel)
    limit_memory(order.memory_bytes)
    sys.path.extend(order.import_paths)
    return channel


def child_environment() -> dict[str, str]:
    """The parent's environment without its secrets: only what a program needs to run."""
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    if warnings := os.environ.get(USERS_WARNINGS):
        kept["PYTHONWARNINGS"] = warnings
    return {**kept, **SET_ENVIRONMENT}


def ending(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"died: signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"died: signal {-code}"


def _prctl() -> Any:
    """The C library's prctl, on the systems that have it."""
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    prctl = _prctl()
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(0)


def guard_forks(channel: socket.socket) -> None:
    """A process that user code forks dies with us, and does not keep the channel open when we are gone."""
    prctl = _prctl()
    parent = os.getpid()

    def before_fork() -> None:
        nonlocal parent
        parent = os.getpid()

    def in_fork() -> None:
        channel.close()
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(0)

    os.register_at_fork(before=before_fork, after_in_child=in_fork)


def limit_memory(memory_bytes: int) -> None:
    """Bound the address space, and leave no core."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
