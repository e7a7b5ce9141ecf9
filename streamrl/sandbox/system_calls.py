"""The system calls that a program in the sandbox may not make, as a seccomp filter (classic BPF).

The filter answers EPERM for what changes the machine or looks into other processes, EACCES for a socket that is not a
Unix one, and ENOSYS for every call that is newer than the table: a call that nobody has judged is not there. `clone3`
is not there either, as its flags cannot be read by a filter; the C library then takes `clone`, whose flags are read.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from streamrl.errors import ConfigError


class Machine(NamedTuple):
    """audit: AUDIT_ARCH_* of linux/audit.h. column: of the table below."""

    audit: int
    column: int


MACHINES: Final[Mapping[str, Machine]] = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}
NEWEST: Final = 450
"""set_mempolicy_home_node (Linux 5.17): the newest call that the table was read against."""

_NONE: Final = -1
# Numbers on x86_64 and on aarch64 (asm/unistd_64.h, asm-generic/unistd.h).
DENIED: Final[Mapping[str, tuple[int, int]]] = {
    # File systems, names and clocks of the machine.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "vhangup": (153, 58),
    "syslog": (103, 116),
    "personality": (135, 92),
    # The kernel's own code and devices.
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "iopl": (172, _NONE),
    "ioperm": (173, _NONE),
    "modify_ldt": (154, _NONE),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "uselib": (134, _NONE),
    "ustat": (136, _NONE),
    "sysfs": (139, _NONE),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    # Namespaces, in which a program has rights that it lacks outside.
    "unshare": (272, 97),
    "setns": (308, 268),
    # Keys, which are not in a namespace.
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    # Memory that no limit of a process counts.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
_CLONE: Final = (56, 220)
_CLONE3: Final = (435, 435)
_SOCKETS: Final = ((41, 198), (53, 199))
_IOCTL: Final = (16, 29)

_NEW_NAMESPACES: Final = 0x7E020000 | 0x00000080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME (linux/sched.h)."""
_AF_UNIX: Final = 1
_TERMINAL_INPUT: Final = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they type for whoever reads the terminal."""

# linux/bpf_common.h and linux/seccomp.h
_LOAD, _EQUAL, _ABOVE, _BITS, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000

_Instruction = tuple[int, int, int, int]


def filter_program(machine: str | None = None) -> bytes:
    """The filter for `machine` (this one), as an array of `struct sock_filter`.

    Raises ConfigError for a machine that the table does not have."""
    name = machine or platform.machine()
    if name not in MACHINES:
        raise ConfigError(f"no table of system calls for {name!r}; there are {', '.join(MACHINES)}")
    return b"".join(struct.pack("<HBBI", *one) for one in _instructions(MACHINES[name]))


def _instructions(machine: Machine) -> list[_Instruction]:
    column = machine.column
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        # Newer calls, and those of x32, which have a bit far above.
        (_ABOVE, 0, 1, NEWEST),
        _refused(errno.ENOSYS),
        (_EQUAL, 0, 1, _CLONE3[column]),
        _refused(errno.ENOSYS),
    ]
    for numbers in DENIED.values():
        if numbers[column] != _NONE:
            program += [(_EQUAL, 0, 1, numbers[column]), _refused(errno.EPERM)]
    program += _when(_CLONE[column], [(_LOAD, 0, 0, _FIRST), (_BITS, 0, 1, _NEW_NAMESPACES), _refused(errno.EPERM)])
    for numbers in _SOCKETS:
        unix = [(_LOAD, 0, 0, _FIRST), (_EQUAL, 1, 0, _AF_UNIX), _refused(errno.EACCES)]
        program += _when(numbers[column], unix)
    typed = [(_LOAD, 0, 0, _SECOND)]
    for request in _TERMINAL_INPUT:
        typed += [(_EQUAL, 0, 1, request), _refused(errno.EPERM)]
    return [*program, *_when(_IOCTL[column], typed), (_RETURN, 0, 0, _ALLOW)]


def _when(number: int, then: Iterable[_Instruction]) -> list[_Instruction]:
    """`then` for that call, which is allowed where nothing in it answers."""
    block = [*then, (_RETURN, 0, 0, _ALLOW)]
    return [(_EQUAL, 0, len(block), number), *block]


def _refused(code: int) -> _Instruction:
    return (_RETURN, 0, 0, _ERRNO | code)
