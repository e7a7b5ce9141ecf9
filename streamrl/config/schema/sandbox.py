"""The table of the sandbox in which programs of a model and of data sets run."""

from typing import Literal

from streamrl.config.schema.table import Positive, PositiveFloat, Table


class SandboxConfig(Table, frozen=True):
    """Where programs run that nobody has read: the reward `code` and the tool `python` (docs/guides/sandbox.md)."""

    level: Literal["auto", "bubblewrap", "namespaces", "remote"] = "auto"
    """Who makes the sandbox: `bwrap`, or streamrl itself. `auto` takes the first that holds on this machine; where none
    does, the run is refused. `remote` is a server that runs programs, at `url`."""
    url: str | None = None
    """Of a server with SandboxFusion's protocol, `http://HOST:PORT`; for `level = "remote"`."""
    python: str | None = None
    """The Python that runs programs, such as `.venv/bin/python` with the packages that they need. Without it, the one
    that streamrl's own environment was made from: it has the standard library."""
    time_s: PositiveFloat = 5.0
    """Seconds that one program may take."""
    memory_bytes: Positive = 512 * 2**20
    """Bytes of memory of one program: the address space of each of its processes, and the memory of all together."""
    processes: Positive = 32
    """Processes and threads of one program."""
    output_bytes: Positive = 2**20
    """Bytes that one program may write to standard output and standard error."""
    disk_bytes: Positive = 64 * 2**20
    """Bytes of the files that one program may write. They are in memory, and gone with it."""
