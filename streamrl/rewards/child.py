"""The program of a reward child process: import the function, load a reward model if there is one, score batches until
the channel closes.

Started by `streamrl.rewards.worker` as `python -P -m streamrl.rewards.child SETTINGS`, leader of a
session of its own. Guarantees that it dies with its parent, stays within its address space, and that nothing
which user code prints can reach the channel: that is a private socket, stdout and stderr are the parent's
stderr. It has no time limit of its own; the parent kills it.
"""

import ctypes
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from streamrl.errors import ConfigError
from streamrl.rewards.build import AnyScorer, make_scorer
from streamrl.rewards.wire import Batch, ChildSettings, Ready, Verdicts, pack, receive_body
from streamrl.stacks import answer

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(argv: list[str]) -> int:
    settings = msgspec.json.decode(argv[1], type=ChildSettings)
    _die_with(settings.parent)
    channel = socket.socket(fileno=settings.channel)
    channel.set_inheritable(False)
    if settings.stacks:
        answer("reward-child", Path(settings.stacks))
    _guard_forks(channel)
    _limit(settings.memory_bytes)
    sys.path.extend(settings.import_paths)
    try:
        scorer = make_scorer(settings.function, settings.model)
    except ConfigError as error:
        channel.sendall(pack(Ready(str(error))))
        return error.exit_code
    channel.sendall(pack(Ready()))
    try:
        _serve(channel, scorer)
    finally:
        # Left open for the kernel to close: the parent takes its end for the end of this process.
        channel.detach()
    return 0


def _serve(channel: socket.socket, scorer: AnyScorer) -> None:
    decoder = msgspec.msgpack.Decoder(Batch)
    while (body := receive_body(channel)) is not None:
        batch = decoder.decode(body)
        channel.sendall(pack(Verdicts(batch.sequence, scorer.score(batch.items))))


def _prctl() -> Any:
    """The C library's prctl, on the systems that have it."""
    return ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    prctl = _prctl()
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the line above
        sys.exit(0)


def _guard_forks(channel: socket.socket) -> None:
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


def _limit(memory_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory_bytes if hard == resource.RLIM_INFINITY else min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv))
