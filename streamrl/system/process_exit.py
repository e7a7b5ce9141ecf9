"""How a process of this machine ended that is no child of ours: its exit code, or the signal that ended it.

    pidfd, opened while it lives  ->  readable when it has ended  ->  the kernel's PIDFD_GET_INFO

Guarantees: what is told is of the very process that was watched, since its number may be given out again. A kernel
before 6.15 does not tell, and then nothing is told. See pidfd_open(2) and `struct pidfd_info` in linux/pidfd.h.
"""

import fcntl
import os
import signal
import struct
from pathlib import Path

_SIZE = 64
"""Of the first published `struct pidfd_info`; later ones only add to its end."""
_GET_INFO = (3 << 30) | (_SIZE << 16) | (0xFF << 8) | 11
"""_IOWR(PIDFS_IOCTL_MAGIC, 11, struct pidfd_info)"""
_EXIT = 1 << 3
_EXIT_CODE_AT = 60
_MEMORY_KILLS = Path("/proc/vmstat")


class ProcessExit:
    """Of one process. Raises OSError when there is none of this number.

    Example:
        ends = ProcessExit(pid)
        loop.add_reader(ends.fileno(), ended)
        ...
        describe_exit(ends.code())   # "ended by SIGKILL"
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def fileno(self) -> int:
        """A descriptor that is readable when the process has ended."""
        return self._fd

    def code(self) -> int | None:
        """The exit code; of a signal its negative number. None while it lives, before its parent has taken note of its
        end, and where the kernel does not tell."""
        info = bytearray(_SIZE)
        struct.pack_into("=Q", info, 0, _EXIT)
        try:
            fcntl.ioctl(self._fd, _GET_INFO, info)
        except OSError:  # what an older kernel answers, and one before whom it has vanished, differs
            return None
        (told,) = struct.unpack_from("=Q", info, 0)
        (status,) = struct.unpack_from("=i", info, _EXIT_CODE_AT)
        return os.waitstatus_to_exitcode(status) if told & _EXIT else None

    def close(self) -> None:
        """The descriptor goes; no event loop may watch it any more."""
        os.close(self._fd)


def describe_exit(code: int) -> str:
    """An exit code, or the negative number of a signal, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended by signal {-code}"


def memory_kills(vmstat: Path = _MEMORY_KILLS) -> int | None:
    """How many processes of this machine the kernel has ended for lack of memory since it booted, those that passed the
    limit of a container among them; None where it does not say."""
    try:
        lines = vmstat.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
