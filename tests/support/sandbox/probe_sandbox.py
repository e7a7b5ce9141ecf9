"""What the keys of `[sandbox]` change: which level is taken, and how one program ends."""

import asyncio
from pathlib import Path
from typing import Any

from streamrl.config import Config
from streamrl.errors import ConfigError
from streamrl.sandbox.program import Program
from streamrl.sandbox.sandbox import Sandbox, make_sandbox

SOURCE = """
import sys, threading, time
print(sys.prefix)
for action in (
    lambda: len(bytearray(2**28)),
    lambda: [threading.Thread(target=time.sleep, args=(0.2,)).start() for _ in range(5)],
    lambda: open("file", "wb").write(bytes(2**22)),
):
    try:
        action()
        print("done")
    except (MemoryError, RuntimeError, OSError) as error:
        print(type(error).__name__)
sys.stdout.flush()
time.sleep(0.8)
"""


def level(config: Config, folder: Path) -> str:
    """The level that is taken, or why none."""
    sandbox = make_sandbox(config.sandbox)
    try:
        return sandbox.start()
    except ConfigError as error:
        return str(error)
    finally:
        sandbox.close()


def ended(config: Config, folder: Path) -> list[Any]:
    """How a program ended that takes some of everything."""
    sandbox = Sandbox(config.sandbox)
    sandbox.start()
    try:
        finished = asyncio.run(sandbox.run(Program(source=SOURCE)))
    finally:
        sandbox.close()
    return [finished.ending, finished.stdout]
