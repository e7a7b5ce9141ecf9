"""The program of the child process that asks a store: one order from standard input, one answer on standard output.

Guarantees: it dies with who started it; what a package prints goes to standard error; what goes wrong is an answer, and
has no secret in it.
"""

import os
import sys

import msgspec

from streamrl.errors import StreamRLError
from streamrl.services.run.control.server import described
from streamrl.services.storage.orders import Answer, Job, Upload
from streamrl.services.storage.work import carry_out
from streamrl.storage.open import open_store
from streamrl.storage.refusals import refusal
from streamrl.system.child_process import die_with

NICENESS = 10
"""Of an upload, which has time: the steps beside it have none."""


def main() -> int:
    answers = os.dup(1)
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    die_with(job.parent)
    if isinstance(job.order, Upload):
        os.nice(NICENESS)
    try:
        answer = Answer(None, carry_out(job.order, open_store))
    except StreamRLError as error:
        answer = Answer(described(error))
    except Exception as error:  # noqa: BLE001 - a package may raise anything
        answer = Answer(described(refusal(error, f"asking {job.order.address}")))
    with os.fdopen(answers, "wb") as file:
        file.write(msgspec.json.encode(answer))
    # Threads of the store's package may wait for a network that is gone.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
