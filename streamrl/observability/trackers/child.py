"""The program of the child process of one tracker: open the run there, and pass on what comes until it ends.

Started by `tracker_process` as `python -P -m streamrl.observability.trackers.child SETTINGS`. Guarantees: it dies with
the run's process; it takes at most `MOST_BYTES` of memory of its own, and the kernel ends it before any part of the run
where memory runs out; it takes the processors after them; what the package raises is told and ends nothing.
"""

import os
import resource
import socket
import sys
from contextlib import suppress

import msgspec

from streamrl.observability.trackers.base import Tracker
from streamrl.observability.trackers.built_in import TRACKERS
from streamrl.observability.trackers.wire import ChildSettings, Finish, Forget, Line, Message, Ready, Table, Taken
from streamrl.system.child_process import begin_child
from streamrl.system.frames import pack, receive_body

MOST_BYTES = 2 * 2**30
"""Of memory that a process of the tracker writes to. Its programs in Go map far more than they use, so their address
space says nothing."""
NICENESS = 10
OUT_OF_MEMORY = 77
"""Exit code."""
LONGEST_ERROR = 500
MOST_LOG_BYTES = 2**20
"""Of what a package prints; then the file begins anew."""


def main(argv: list[str]) -> int:
    settings = msgspec.json.decode(argv[1], type=ChildSettings)
    channel = begin_child(settings, f"tracker-{settings.tracker}")
    _be_first_to_go()
    settings.run.own_folder.mkdir(parents=True, exist_ok=True)
    os.chdir(settings.run.own_folder)  # packages leave files where they are
    _print_into(f"{settings.tracker}.log")
    try:
        tracker = TRACKERS[settings.tracker](settings.run)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may raise anything
        channel.sendall(pack(Ready(_told(error))))
        os._exit(2)
    channel.sendall(pack(Ready(where=tracker.where)))
    _serve(channel, Passing(tracker))
    # Threads and exit handlers of the package's may wait for a network that is gone, and nobody waits for them.
    os._exit(0)


class Passing:
    """Passes messages on to a tracker. A step that it has already, it does not get again, unless it can forget."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._has = -1 if tracker.rewinds else tracker.last_step
        self._newest = -1

    def take(self, message: Message) -> None:
        match message:
            case Line(step, numbers):
                if step > self._has:
                    self._newest = step
                    self._tracker.log(step, numbers)
            case Forget(step):
                if self._tracker.rewinds:
                    self._tracker.forget_after(step)
                else:
                    self._has = max(self._has, self._newest)
            case Table(step, name, columns, rows):
                self._tracker.table(step, name, columns, rows)
            case Finish(ending):
                self._tracker.finish(ending)


def _serve(channel: socket.socket, passing: Passing) -> None:
    """Until the last message, or the end of who sends them."""
    decoder = msgspec.msgpack.Decoder(Message)
    while (body := receive_body(channel)) is not None:
        message = decoder.decode(body)
        error = ""
        try:
            passing.take(message)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except (Exception, SystemExit) as raised:  # noqa: BLE001 - a package may raise anything
            error = _told(raised)
        _bound_log()
        channel.sendall(pack(Taken(message.number, error)))
        if isinstance(message, Finish):
            return


def _be_first_to_go() -> None:
    """The run's parts come first, for processors and for memory."""
    os.nice(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = MOST_BYTES if hard == resource.RLIM_INFINITY else min(MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _print_into(path: str) -> None:
    """What the package prints goes there: the terminal of the run is not for it."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


def _bound_log() -> None:
    if os.fstat(1).st_size > MOST_LOG_BYTES:
        os.ftruncate(1, 0)


def _told(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:LONGEST_ERROR]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
