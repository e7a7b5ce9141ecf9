"""The program of a reward child process: import the function, load a reward model if there is one, score batches until
the channel closes.

Started by `streamrl.rewards.worker` as `python -P -m streamrl.rewards.child SETTINGS`, leader of a
session of its own. Guarantees that it dies with its parent, stays within its address space, and that nothing
which user code prints can reach the channel: that is a private socket, stdout and stderr are the parent's
stderr. It has no time limit of its own; the parent kills it.
"""

import socket
import sys

import msgspec

from streamrl.errors import ConfigError
from streamrl.rewards.build import AnyScorer, make_scorer
from streamrl.rewards.wire import Batch, ChildSettings, Ready, Verdicts
from streamrl.system.child_process import begin_child
from streamrl.system.frames import pack, receive_body


def main(argv: list[str]) -> int:
    settings = msgspec.json.decode(argv[1], type=ChildSettings)
    channel = begin_child(settings, "reward-child")
    try:
        scorer = make_scorer(settings.rule, settings.model, settings.sandbox)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv))
