"""The level `bubblewrap`: the command line of `bwrap`, which makes the namespaces and the root folder. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from streamrl.sandbox.interpreter import Interpreter
from streamrl.sandbox.limits import program_environment
from streamrl.sandbox.program import MAIN, Limits
from streamrl.sandbox.wire import JailerSettings

PRLIMIT: Final = "/usr/bin/prlimit"
"""Of util-linux: it sets inside what would count the user's other processes outside."""
_INSIDE_ID: Final = "1000"
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_APART: Final = (
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-net",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
    "--new-session",
    # The program is the first process: else it could write to the memory of one that no filter of calls holds.
    "--as-pid-1",
    "--clearenv",
)


def command(
    settings: JailerSettings,
    arguments: Sequence[str],
    limits: Limits,
    *,
    files: Mapping[str, int],
    system_calls: int,
    status: int,
) -> list[str]:
    """The command line for a program with `arguments`. files: name in the program's folder, and descriptor of the text.
    system_calls: descriptor of the filter. status: descriptor to which bwrap writes JSON on what became of it."""
    variables = [part for name, value in program_environment().items() for part in ("--setenv", name, value)]
    texts = [part for name, number in files.items() for part in ("--perms", "0644", "--file", str(number), name)]
    python = settings.interpreter
    return [
        *(settings.bubblewrap, *_APART, *variables),
        *("--uid", _INSIDE_ID, "--gid", _INSIDE_ID, "--hostname", "sandbox"),
        # First the folder that is written to: a Python may lie in it, too.
        *("--size", str(limits.disk_bytes), "--perms", "1777", "--tmpfs", "/tmp"),
        *_root(python),
        *texts,
        *("--remount-ro", "/", "--chdir", "/tmp", "--cap-drop", "ALL"),
        *("--seccomp", str(system_calls), "--json-status-fd", str(status), "--"),
        *(PRLIMIT, f"--nproc={limits.processes}:{limits.processes}", "--"),
        *(python.name, "-s", "-B", MAIN, *arguments),
    ]


def _root(python: Interpreter) -> list[str]:
    shown = [part for path in python.visible for part in ("--ro-bind", path, path)]
    empty = ("--size", "4096", "--tmpfs")
    hidden = [part for path in python.hidden for part in (*empty, path, "--remount-ro", path)]
    links = [part for link, target in python.links for part in ("--symlink", target, link)]
    devices = [part for name in _DEVICES for part in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    return [
        *shown,
        *hidden,
        *links,
        *("--proc", "/proc", "--size", str(2**20), "--tmpfs", "/dev", *devices),
        *("--symlink", "/proc/self/fd", "/dev/fd", "--symlink", "/tmp", "/dev/shm", "--remount-ro", "/dev"),
    ]
