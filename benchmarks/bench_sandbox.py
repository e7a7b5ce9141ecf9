"""The sandbox: how many small programs a second run on each level.

A program adds two numbers that it reads; as many run beside each other as there are cores. The median of the rounds.
"""

import asyncio
import os
import statistics
import sys
import time

from report import Report

from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import ConfigError
from streamrl.sandbox.program import Program
from streamrl.sandbox.sandbox import Sandbox

PROGRAM = "left, right = map(int, input().split())\nprint(left + right)"
AT_ONCE = len(os.sched_getaffinity(0))
ROUNDS, EACH, LEAST_S = 5, 60, 50
SYSTEM_PYTHON = "/usr/bin/python3"


async def programs_s(sandbox: Sandbox) -> float:
    """Programs a second."""
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with turn:
            finished = await sandbox.run(Program(source=PROGRAM, stdin=f"{number} 1".encode()))
        assert int(finished.stdout) == number + 1, finished

    begun = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(EACH)))
    return EACH / (time.monotonic() - begun)


def measured(report: Report, name: str, config: SandboxConfig) -> None:
    sandbox = Sandbox(config)
    try:
        sandbox.start()
    except ConfigError as error:
        print(f"{name}: not measured: {error}", file=sys.stderr)
        return
    median = statistics.median(asyncio.run(programs_s(sandbox)) for _ in range(ROUNDS))
    sandbox.close()
    report.add(f"{name}: programs a second, {AT_ONCE} at once", median, "1/s", at_least=LEAST_S)


def main() -> int:
    report = Report("sandbox")
    measured(report, "namespaces", SandboxConfig(level="namespaces"))
    measured(report, "bubblewrap", SandboxConfig(level="bubblewrap", python=SYSTEM_PYTHON))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
