"""Ranks find each other at an address, which is of that machine alone."""

from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from support.learner.rank_processes import run_ranks

from streamrl.errors import ComponentError, ResourceError
from streamrl.learner.parallel.meeting import Meeting, listen

PROGRAM = Path(__file__).with_name("meeting_rank.py")
SOON = timedelta(seconds=1)


def test_ranks_meet_at_an_address(tmp_path: Path) -> None:
    for found in run_ranks(PROGRAM, tmp_path, 3, timeout_s=120):
        assert found == {"sum": 6, "interface": "lo"}


def test_it_listens_on_its_address_alone() -> None:
    meeting = listen("127.0.0.1", SOON)
    port = int(meeting.place.rpartition(":")[2])
    open_here = [one for one in psutil.Process().net_connections("inet") if one.laddr and one.laddr.port == port]
    assert {one.laddr.ip for one in open_here if one.status == psutil.CONN_LISTEN} == {"127.0.0.1"}


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ResourceError, match=r"learner: nothing can listen on 192\.0\.2\.1: "):
        listen("192.0.2.1", SOON)


def test_a_rank_0_that_does_not_answer_is_told() -> None:
    with pytest.raises(ComponentError, match=r"rank 0 of the learner does not answer at 127\.0\.0\.1:1: "):
        Meeting("127.0.0.1:1", "127.0.0.1").store(SOON)


def test_an_address_that_no_interface_has_names_none() -> None:
    assert Meeting("127.0.0.1:1", "192.0.2.1").interface is None
