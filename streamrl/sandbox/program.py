"""A program to run, what it may take, and how it ended. No I/O."""

import enum
from collections.abc import Mapping

import msgspec

from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.errors import DataError

MAIN = "main.py"
"""Name of the program's own file, in the folder in which it starts."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one program, with all that it starts. time_s: wall time, and the same of one process's CPU time. memory_bytes:
    address space of each process, and memory of all together. processes: with their threads. output_bytes: of standard
    output and standard error together. disk_bytes: of what it writes."""

    time_s: float = 5.0
    memory_bytes: int = 512 * 2**20
    processes: int = 32
    output_bytes: int = 2**20
    disk_bytes: int = 64 * 2**20


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A Python program. source: its text. files: further files beside it, by name. arguments: what `sys.argv` has
    behind the name.

    Example:
        >>> Program(source="print(input())", stdin=b"hello").stdin
        b'hello'
    """

    source: str
    stdin: bytes = b""
    arguments: tuple[str, ...] = ()
    files: Mapping[str, str] = {}


class Ending(enum.Enum):
    """What ended a program."""

    EXITED = "exited"
    TIME = "time"
    MEMORY = "memory"
    OUTPUT = "output"


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended. exit_code: as a shell gives it, 128 and the number for a signal. stdout, stderr: as far as
    the limit allows. wall_s, cpu_s: what it took."""

    ending: Ending
    exit_code: int
    stdout: bytes
    stderr: bytes
    wall_s: float
    cpu_s: float

    @property
    def succeeded(self) -> bool:
        """It came to its own end, with 0."""
        return self.ending is Ending.EXITED and self.exit_code == 0

    def in_words(self, limits: Limits) -> str:
        """How it ended."""
        match self.ending:
            case Ending.EXITED:
                return f"exit code {self.exit_code}"
            case Ending.TIME:
                return f"ran longer than {limits.time_s:g} s"
            case Ending.MEMORY:
                return f"took more than {limits.memory_bytes} bytes of memory"
            case Ending.OUTPUT:
                return f"wrote more than {limits.output_bytes} bytes"


def limits_of(config: SandboxConfig) -> Limits:
    """What `[sandbox]` says of each program."""
    return Limits(
        time_s=config.time_s,
        memory_bytes=config.memory_bytes,
        processes=config.processes,
        output_bytes=config.output_bytes,
        disk_bytes=config.disk_bytes,
    )


def checked(program: Program) -> None:
    """Raises DataError for a program that cannot be one."""
    for name in program.files:
        if "/" in name or "\0" in name or name in ("", ".", "..", MAIN):
            raise DataError(f"sandbox: {name!r} is no name of a file beside {MAIN}")
    if any("\0" in argument for argument in program.arguments):
        raise DataError("sandbox: an argument holds a zero byte")
