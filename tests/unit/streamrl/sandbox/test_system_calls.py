"""The filter, run by a small machine of its own: what the kernel would answer."""

import errno
import struct

import pytest

from streamrl.errors import ConfigError
from streamrl.sandbox.system_calls import DENIED, MACHINES, NEWEST, filter_program

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NUMBERS = {"read": (0, 63), "execve": (59, 221), "clone": (56, 220), "clone3": (435, 435), "socket": (41, 198)}
NUMBERS |= {"ioctl": (16, 29), "futex": (202, 98), "openat": (257, 56), "prlimit64": (302, 261)}


def answer(machine: str, number: int, *given: int, audit: int | None = None) -> int:
    """What classic BPF makes of a call: RET's value."""
    data = struct.pack("<iIQ6Q", number, audit or MACHINES[machine].audit, 0, *(*given, *[0] * 6)[:6])
    program = list(struct.iter_unpack("<HBBI", filter_program(machine)))
    place = value = 0
    while True:
        code, yes, no, k = program[place]
        place += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, k)
            case 0x15:
                place += yes if value == k else no
            case 0x25:
                place += yes if value > k else no
            case 0x45:
                place += yes if value & k else no
            case 0x06:
                return k
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_program_needs_is_allowed(machine: str) -> None:
    column = MACHINES[machine].column
    for name in ("read", "execve", "futex", "openat", "prlimit64"):
        assert answer(machine, NUMBERS[name][column]) == ALLOW, name
    assert answer(machine, NUMBERS["clone"][column], 0x3D0F00) == ALLOW  # a thread
    assert answer(machine, NUMBERS["socket"][column], 1) == ALLOW
    assert answer(machine, NUMBERS["ioctl"][column], 0, 0x5401) == ALLOW
    assert answer(machine, NEWEST) in (ALLOW, ERRNO | errno.EPERM)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_it_must_not_is_refused(machine: str) -> None:
    column = MACHINES[machine].column
    for name, numbers in DENIED.items():
        if numbers[column] >= 0:
            assert answer(machine, numbers[column]) == ERRNO | errno.EPERM, name
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
        assert answer(machine, NUMBERS["clone"][column], 17 | flag) == ERRNO | errno.EPERM
    assert answer(machine, NUMBERS["clone3"][column]) == ERRNO | errno.ENOSYS
    assert answer(machine, NEWEST + 1) == ERRNO | errno.ENOSYS
    assert answer(machine, 0x40000000) == ERRNO | errno.ENOSYS
    for family in (2, 10, 16, 17, 40):
        assert answer(machine, NUMBERS["socket"][column], family) == ERRNO | errno.EACCES
    for request in (0x5412, 0x541C):
        assert answer(machine, NUMBERS["ioctl"][column], 0, request) == ERRNO | errno.EPERM


def test_calls_of_another_machine_end_the_program() -> None:
    assert answer("x86_64", 0, audit=0x40000003) == KILL


def test_a_machine_without_a_table_has_no_filter() -> None:
    with pytest.raises(ConfigError, match="no table of system calls for 'riscv64'; there are x86_64, aarch64"):
        filter_program("riscv64")
