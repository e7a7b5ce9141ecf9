"""What this machine has: memory, shared memory, disk, GPUs, optional packages. Reads the system, decides
nothing."""

import os
import resource
import shutil
import socket
from importlib import util
from pathlib import Path

from msgspec import Struct

_CGROUP = Path("/sys/fs/cgroup")
_SHARED_MEMORY = Path("/dev/shm")
_DEVICES = Path("/dev")
_ANSWER_S = 2.0
_UNLIMITED = 2**63 - 1
LEAST_OPEN_FILES = 128
"""Of a process of Ray; with 64 a small run did not come up, with 96 it did."""


class Machine(Struct, frozen=True, kw_only=True):
    """Bytes are free bytes. `runs_writable` is None where a file stands in the way of the runs folder. GPUs are those
    that this process may use. loopback_fault: of `loopback_fault`. open_files, file_bytes: limits of a process."""

    memory_bytes: int
    shared_memory_bytes: int
    disk_bytes: int
    runs_writable: bool | None
    num_gpus: int
    torch_has_cuda: bool
    has_peft: bool
    has_torchao: bool
    loopback_fault: str = ""
    open_files: int = _UNLIMITED
    file_bytes: int = _UNLIMITED


def read_machine(runs: Path, devices: Path = _DEVICES) -> Machine:
    """The machine as it is now; `runs` need not exist yet. devices: the folder that GPUs have their files in."""
    place = _nearest_existing(runs.expanduser().absolute())
    num_gpus = visible_gpus(len(list(devices.glob("nvidia[0-9]*"))), os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Machine(
        memory_bytes=available_memory(),
        shared_memory_bytes=shared_memory_bytes(),
        disk_bytes=shutil.disk_usage(place).free,
        runs_writable=os.access(place, os.W_OK | os.X_OK) if place.is_dir() else None,
        num_gpus=num_gpus,
        torch_has_cuda=num_gpus > 0 and _torch_has_cuda(),
        has_peft=util.find_spec("peft") is not None,
        has_torchao=util.find_spec("torchao") is not None,
        loopback_fault=loopback_fault(),
        open_files=open_files(),
        file_bytes=file_bytes(),
    )


def shared_memory_bytes() -> int:
    """Free ones, 0 where there is no /dev/shm."""
    return shutil.disk_usage(_SHARED_MEMORY).free if _SHARED_MEMORY.is_dir() else 0


def visible_gpus(devices: int, visible: str | None) -> int:
    """Of so many devices those that this process may use, and a Ray that it starts gives away. visible: the value of
    `CUDA_VISIBLE_DEVICES`, None where it is not set."""
    if visible is None:
        return devices
    names = [name.strip() for name in visible.split(",")]
    return min(devices, sum(name not in ("", "-1", "NoDevFiles") for name in names))


def loopback_fault() -> str:
    """Why this machine cannot connect to itself at 127.0.0.1, "" where it can."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), _ANSWER_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def open_files() -> int:
    """That a process may have: the hard limit, for Ray raises the other one to it."""
    return _limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def file_bytes() -> int:
    """That a file may have, of those that this process writes, in memory too."""
    return _limit(resource.getrlimit(resource.RLIMIT_FSIZE)[0])


def process_count() -> int:
    """Processes and threads that the user may have at once."""
    return _limit(resource.getrlimit(resource.RLIMIT_NPROC)[0])


def address_bytes() -> int:
    """That a process may map, of files and of memory that it never touches, too."""
    return _limit(resource.getrlimit(resource.RLIMIT_AS)[0])


def _limit(value: int) -> int:
    return _UNLIMITED if value == resource.RLIM_INFINITY else value


def available_memory() -> int:
    """Bytes that new processes can take: what the kernel has, and what the container's limit leaves."""
    import psutil  # only here: whoever merely loads a configuration does without it

    available = int(psutil.virtual_memory().available)
    left = cgroup_memory_left(_CGROUP)
    return available if left is None else min(available, left)


def cgroup_memory_left(folder: Path) -> int | None:
    """Bytes under the limit of a version 2 control group, None where there is none. Page cache that can be
    dropped counts as free."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
        stat = (folder / "memory.stat").read_text()
    except OSError:
        return None
    if limit == "max":
        return None
    cache = next((int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file ")), 0)
    return max(0, int(limit) - used + cache)


def _torch_has_cuda() -> bool:
    """By the version's label, since importing torch takes seconds: CPU builds are labelled `+cpu`."""
    from importlib import metadata  # only here: it takes longer than the rest of a check

    try:
        return not metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return False


def _nearest_existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
