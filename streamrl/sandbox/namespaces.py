"""The level `namespaces`: a program in namespaces of its own, set up by this code, without a helper program.

Three processes take part. The supervisor leaves the network, the process ids and (as an ordinary user) the rights of
this machine. Its child is the first process of the new process ids: it makes a root folder that holds what
`Interpreter.visible` names, read-only, and an empty `/tmp`. Its own child gives up the rest and becomes the program.
When the first process ends, the kernel ends all others.
"""

import os
import resource
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from streamrl.sandbox.kernel import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    Kernel,
)
from streamrl.sandbox.limits import apply_limits, program_environment
from streamrl.sandbox.program import MAIN, Limits
from streamrl.sandbox.wire import JailerSettings, Order

INSIDE_ID: Final = 1000
"""User and group of the program, as it sees itself."""
_OWN_IDS: Final = 50_000
"""Ids at the end of what this machine has, of which each program of a root user takes one: nobody else has it, so the
limit on its processes counts them alone."""
_MOST_ID: Final = 2**31
"""Programs that take an id for a signed number do not know those above."""
_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_DEVICE_LINKS: Final = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "shm": "/tmp"}
_STAGE: Final = "/tmp"
WORK: Final = "/tmp"
"""Where a program starts: the only folder that it can write to."""
Become = Callable[[], None]
"""Takes the program's standard streams."""


def leave_machine(kernel: Kernel) -> int | None:
    """In the supervisor: new namespaces for what it forks next. Returns the user id that the program is to take, None
    where it keeps the one that it has. Raises OSError."""
    apart = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWUTS
    if os.geteuid() == 0:
        with suppress(PermissionError):
            kernel.unshare(apart)
            return own_id()
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(CLONE_NEWUSER | apart)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INSIDE_ID} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{INSIDE_ID} {group} 1")
    return None


def own_id() -> int:
    """An id that no user has. Raises OSError where this machine (a container) has too few."""
    inside, _, count = Path("/proc/self/uid_map").read_text().splitlines()[-1].split()
    if int(count) < _OWN_IDS + 10_000:
        raise OSError(f"this container has {count} user ids, too few for one that is nobody's")
    return min(int(inside) + int(count), _MOST_ID) - 2 - os.getpid() % _OWN_IDS


def first_process(kernel: Kernel, settings: JailerSettings, order: Order, as_id: int | None, become: Become) -> None:
    """Make the root folder, start the program, and end with its exit code. Does not return; raises OSError before the
    program has begun."""
    kernel.die_with_parent(signal.SIGKILL)
    kernel.unshare(CLONE_NEWNS)
    with suppress(OSError):  # before Linux 4.6
        kernel.unshare(CLONE_NEWCGROUP)
    _make_root(kernel, settings, order)
    # Its descriptors and its memory are not the program's to look at, who may have the same user.
    kernel.hide_from_others()
    program = os.fork()
    if program == 0:
        _program(kernel, settings, order.program.arguments, order.limits, as_id, become)
    while True:
        ended, status = os.wait()
        if ended == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _program(
    kernel: Kernel,
    settings: JailerSettings,
    arguments: tuple[str, ...],
    limits: Limits,
    as_id: int | None,
    become: Become,
) -> None:
    os.setsid()
    apply_limits(limits)
    resource.setrlimit(resource.RLIMIT_NPROC, (limits.processes, limits.processes))
    take_id(as_id)
    default_signals()
    os.umask(0o022)
    become()
    kernel.gain_nothing()
    kernel.filter_calls(settings.system_calls)
    python = settings.interpreter
    os.execve(python.path, [python.name, "-s", "-B", MAIN, *arguments], program_environment())


def take_id(as_id: int | None) -> None:
    """Become that user, for good, and member of no other group; None stays who it is."""
    if as_id is not None:
        os.setgroups([])
        os.setresgid(as_id, as_id, as_id)
        os.setresuid(as_id, as_id, as_id)


def default_signals() -> None:
    """What Python has set otherwise."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)


def _make_root(kernel: Kernel, settings: JailerSettings, order: Order) -> None:
    # Followed while this machine's root is the root: below `old` a link would lead elsewhere.
    sources = {path: os.path.realpath(path) for path in settings.interpreter.visible}
    kernel.mount("", "/", "", MS_REC | MS_PRIVATE)
    # What the root folder is put together from stays reachable below `old`, also what lies under the stage.
    kernel.mount("tmpfs", _STAGE, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    for name in ("old", "new"):
        os.mkdir(f"{_STAGE}/{name}")
    kernel.pivot_root(_STAGE, f"{_STAGE}/old")
    os.chdir("/")
    kernel.mount("tmpfs", "/new", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m")
    os.mkdir("/new/tmp")
    most = f"mode=1777,size={order.limits.disk_bytes},nr_inodes=10000"
    kernel.mount("tmpfs", "/new/tmp", "tmpfs", MS_NOSUID | MS_NODEV, most)
    # Behind the folder that is written to: a Python may lie there, too.
    for path, source in sources.items():
        _place_for(f"/old{source}", f"/new{path}")
        kernel.show_read_only(f"/old{source}", f"/new{path}")
    for path in settings.interpreter.hidden:
        kernel.mount("tmpfs", f"/new{path}", "tmpfs", MS_NOSUID | MS_NODEV | MS_RDONLY, "mode=755,size=4k")
    for link, target in settings.interpreter.links:
        os.makedirs(os.path.dirname(f"/new{link}"), exist_ok=True)
        os.symlink(target, f"/new{link}")
    _make_devices(kernel)
    os.mkdir("/new/proc")
    with suppress(OSError):  # a container hides parts of its own, and the kernel then shows no other
        kernel.mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    _write_files("/new/tmp", {MAIN: order.program.source, **order.program.files})
    os.chdir("/new")
    kernel.pivot_root(".", ".")
    kernel.detach(".")
    kernel.mount("", "/", "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(WORK)


def _place_for(source: str, target: str) -> None:
    """An empty folder, or an empty file."""
    if os.path.isdir(source):
        os.makedirs(target)
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "x"):
        pass


def _make_devices(kernel: Kernel) -> None:
    os.mkdir("/new/dev")
    for name in _DEVICES:
        with open(f"/new/dev/{name}", "x"):
            pass
        kernel.mount(f"/old/dev/{name}", f"/new/dev/{name}", "", MS_BIND)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"/new/dev/{name}")


def _write_files(folder: str, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        with open(f"{folder}/{name}", "xb") as file:
            file.write(text.encode("utf-8", "surrogatepass"))
        os.chmod(f"{folder}/{name}", 0o644)
