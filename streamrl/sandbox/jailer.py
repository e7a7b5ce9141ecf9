"""The program of the process that forks a supervisor for each program to run.

Started by `sandbox` as `python -P -m streamrl.sandbox.jailer SETTINGS`. It has one thread and no secret, and forks in a
millisecond what would take a new Python twenty. Each order comes as a socket of its own, with the
program's end of another one where it talks to a second program. It ends with its parent, as
does every supervisor, and with it every program.
"""

import os
import signal
import socket
import sys

import msgspec

from streamrl.sandbox.kernel import Kernel
from streamrl.sandbox.supervisor import supervise
from streamrl.sandbox.wire import JailerSettings
from streamrl.system.child_process import die_with


def main(argv: list[str]) -> int:
    settings = msgspec.json.decode(argv[1], type=JailerSettings)
    die_with(settings.parent)
    channel = socket.socket(fileno=settings.channel)
    channel.set_inheritable(False)
    # The kernel reaps the supervisors: what they have to say goes to the caller.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel = Kernel()
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, 1, 2)
        if not data:
            return 0
        for number in descriptors:  # received ones are inherited, if nobody says otherwise
            os.set_inheritable(number, False)
        with socket.socket(fileno=descriptors[0]) as order:
            if os.fork() == 0:
                _supervisor(kernel, settings, channel, order, descriptors[1:])
        for peer in descriptors[1:]:
            os.close(peer)


def _supervisor(
    kernel: Kernel, settings: JailerSettings, channel: socket.socket, order: socket.socket, peer: list[int]
) -> None:
    """peer: the descriptor of the program's other side, if it has one. Does not return."""
    try:
        channel.close()
        kernel.die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        supervise(kernel, settings, order, peer)
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
