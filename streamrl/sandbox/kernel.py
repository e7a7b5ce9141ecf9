"""Calls of Linux that Python does not have, with errors as OSError."""

import ctypes
import os
import platform
import struct
from typing import Final

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC = 32, 1024, 2048, 4096, 16384
MS_PRIVATE, MS_RELATIME = 1 << 18, 1 << 21
MNT_DETACH: Final = 2

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER: Final = 2
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR: Final = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTRIBUTES: Final = struct.Struct("<QQQQ")
_ST_TO_MS: Final = {1024: MS_NOATIME, 2048: MS_NODIRATIME, 4096: MS_RELATIME, 8: MS_NOEXEC}
"""Flags of a mount as statvfs gives them, and as mount takes them. (The lowest four are the same.)"""


class Kernel:
    """The C library, loaded once, before a process forks."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long
        self._machine = platform.machine()

    def unshare(self, flags: int) -> None:
        self._checked(self._libc.unshare(ctypes.c_int(flags)), "unshare")

    def die_with_parent(self, signal_number: int) -> None:
        self._prctl(_PR_SET_PDEATHSIG, signal_number)

    def hide_from_others(self) -> None:
        """Nobody without rights over this process can look into it."""
        self._prctl(_PR_SET_DUMPABLE, 0)

    def gain_nothing(self) -> None:
        """No program that is started from here on has more rights than this one."""
        self._prctl(_PR_SET_NO_NEW_PRIVS, 1)

    def filter_calls(self, program: bytes) -> None:
        """program: an array of `struct sock_filter`. It needs `gain_nothing` first."""
        kept = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("@HP", len(program) // 8, ctypes.addressof(kept))
        given = ctypes.create_string_buffer(header, len(header))
        self._prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(given))

    def mount(self, source: str, target: str, kind: str, flags: int, options: str = "") -> None:
        texts = [one.encode() or None for one in (source, target, kind)]
        given = options.encode() or None
        done = self._libc.mount(*texts, ctypes.c_ulong(flags), given)
        self._checked(done, f"mount {kind or source} at {target}")

    def show_read_only(self, source: str, target: str) -> None:
        """Bind `source` at `target` with all that is mounted in it, without devices and without setuid."""
        self.mount(source, target, "", MS_BIND | MS_REC)
        attributes = _MOUNT_ATTRIBUTES.pack(MS_RDONLY | MS_NOSUID | MS_NODEV, 0, 0, 0)
        given = ctypes.create_string_buffer(attributes, len(attributes))
        numbers = [
            ctypes.c_long(_MOUNT_SETATTR),
            ctypes.c_int(_AT_FDCWD),
            target.encode(),
            ctypes.c_uint(_AT_RECURSIVE),
        ]
        if self._libc.syscall(*numbers, given, ctypes.c_size_t(len(attributes))) == 0:
            return
        # Before Linux 5.12: this mount alone. Flags that it has must stay, or the kernel refuses.
        found = os.statvfs(target).f_flag
        kept = sum(flag for bit, flag in _ST_TO_MS.items() if found & bit)
        self.mount("", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)

    def pivot_root(self, new: str, old: str) -> None:
        number = ctypes.c_long(_PIVOT_ROOT[self._machine])
        self._checked(self._libc.syscall(number, new.encode(), old.encode()), f"pivot_root to {new}")

    def detach(self, target: str) -> None:
        self._checked(self._libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")

    def _prctl(self, option: int, value: int, more: int = 0) -> None:
        given = [ctypes.c_ulong(one) for one in (value, more, 0, 0)]
        self._checked(self._libc.prctl(ctypes.c_int(option), *given), f"prctl {option}")

    def _checked(self, result: int, what: str) -> None:
        if result != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{what}: {os.strerror(code)}")
