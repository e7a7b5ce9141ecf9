"""Has a child process carry out an order at a store, within a time: a store that hangs holds nobody up.

Guarantees: when a call returns or raises, its child is gone, with all that it started.
"""

import os
import subprocess
import sys
from typing import Any, Final

import msgspec

from streamrl.errors import ComponentError, DeadlineError
from streamrl.services.run.ending import error_of
from streamrl.services.storage.orders import Answer, Job, Order
from streamrl.system.child_process import ending
from streamrl.system.processes import end_session

_COMMAND: Final = (sys.executable, "-P", "-m", "streamrl.services.storage.child")
_LONGEST_WORDS: Final = 400


def ask(order: Order, limit_s: float) -> dict[str, Any]:
    """The facts of the answer. Raises DeadlineError after `limit_s`, and what the child failed with."""
    child = subprocess.Popen(_COMMAND, stdin=-1, stdout=-1, stderr=-1, start_new_session=True)
    try:
        out, words = child.communicate(_job(order), timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise _too_long(order, limit_s) from None
    finally:
        if child.returncode is None:
            end_session(child.pid)
            child.wait()
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()
    return _facts(order, child.returncode, out, words)


async def ask_beside(order: Order, limit_s: float) -> dict[str, Any]:
    """The same in an event loop. Cancelled, it ends its child first."""
    import asyncio  # `streamrl up` needs the one above alone, and is to be quick

    child = await asyncio.create_subprocess_exec(*_COMMAND, stdin=-1, stdout=-1, stderr=-1, start_new_session=True)
    try:
        async with asyncio.timeout(limit_s):
            out, words = await child.communicate(_job(order))
    except TimeoutError:
        raise _too_long(order, limit_s) from None
    finally:
        if child.returncode is None:
            end_session(child.pid)
            await child.wait()
    assert child.returncode is not None
    return _facts(order, child.returncode, out, words)


def _job(order: Order) -> bytes:
    return msgspec.json.encode(Job(os.getpid(), order))


def _too_long(order: Order, limit_s: float) -> DeadlineError:
    return DeadlineError(
        f"{order.address}: {_what(order)} took longer than {limit_s:g} s (deadlines.upload_s is behind that); is the "
        "store reachable from here?"
    )


def _facts(order: Order, code: int, out: bytes, words: bytes) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(out, type=Answer)
    except msgspec.DecodeError:
        last = words.decode(errors="replace").strip().splitlines()[-1:]
        told = "; ".join([f"its process {ending(code)}", *last])[:_LONGEST_WORDS]
        raise ComponentError(f"{order.address}: {_what(order)} failed: {told}") from None
    if answer.error is not None:
        raise error_of(answer.error)
    return answer.facts


def _what(order: Order) -> str:
    return f"the {type(order).__name__.lower()}"
