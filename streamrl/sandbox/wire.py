"""What a caller sends to the process that runs its program, and gets back, in frames of `streamrl.system.frames`; and
the names of the levels."""

import msgspec

from streamrl.sandbox.interpreter import Interpreter
from streamrl.sandbox.program import Ending, Limits, Program
from streamrl.system.child_process import ChildOrder

BUBBLEWRAP = "bubblewrap"
NAMESPACES = "namespaces"
REMOTE = "remote"


class JailerSettings(ChildOrder, frozen=True, kw_only=True):
    """What the jailer is told. level: BUBBLEWRAP or NAMESPACES. bubblewrap: path of its program."""

    level: str
    interpreter: Interpreter
    bubblewrap: str = ""
    system_calls: bytes


class Order(msgspec.Struct, frozen=True, array_like=True):
    """A program and its limits."""

    program: Program
    limits: Limits


class Report(msgspec.Struct, frozen=True, array_like=True):
    """How a program ended. error: why there was no sandbox to run it in; the rest says nothing then."""

    error: str
    ending: Ending = Ending.EXITED
    exit_code: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    wall_s: float = 0.0
    cpu_s: float = 0.0
