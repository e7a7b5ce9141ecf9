"""Waiting for descriptors of any number."""

import fcntl
import os
from collections.abc import Iterator

import pytest

from streamrl.system.poll import readable

ABOVE_SELECT = 1500


@pytest.fixture
def pipe() -> Iterator[list[int]]:
    low, writer = os.pipe()
    ends = [fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, ABOVE_SELECT), writer]
    os.close(low)
    yield ends
    for end in ends:
        os.close(end)


def test_a_high_descriptor_is_readable_when_something_is_written(pipe: list[int]) -> None:
    assert pipe[0] >= ABOVE_SELECT
    assert readable([pipe[0]], 0.0) == set()
    os.write(pipe[1], b"x")
    assert readable([pipe[0]], 10.0) == {pipe[0]}


def test_an_end_of_file_counts_as_readable(pipe: list[int]) -> None:
    os.close(pipe.pop())
    assert readable([pipe[0]], None) == {pipe[0]}


def test_only_the_ready_ones_are_returned(pipe: list[int]) -> None:
    quiet, other = os.pipe()
    pipe += [quiet, other]
    os.write(pipe[1], b"x")
    assert readable([quiet, pipe[0]], 10.0) == {pipe[0]}
