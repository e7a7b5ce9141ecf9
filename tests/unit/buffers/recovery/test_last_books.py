"""`streamrl queue` of a run that is not up: the books are those that the queue had, made by its own recovery."""

import json
from pathlib import Path

import msgspec
import pytest
from support.queue.booked_queue import STOP, Order, frame_of, packed_rows
from support.runs.looked_run import finished_run, interrupted_run, run_folder
from support.runs.small_run import GROUP_SIZE, GROUPS, STEPS, queue_settings

from streamrl.buffers.index.replay_index import ReplayIndex
from streamrl.clock import VirtualClock
from streamrl.services.cli.main import run_app
from streamrl.services.inspect.queue import as_lines, queue_facts


def test_a_finished_run_has_trained_everything_and_nothing_waits(tmp_path: Path) -> None:
    facts = queue_facts(finished_run(tmp_path))
    queue = facts["queue"]
    assert (facts["source"], facts["oldest"]) == ("ledger", None)
    assert (queue["next_step"], queue["groups_trained"], queue["rows_trained"]) == (STEPS, GROUPS, GROUPS * GROUP_SIZE)
    assert (queue["bytes_held"], queue["bytes_reserved"]) == (0, 0)
    assert facts["disk"].pop("spare") == 0
    assert all(size > 0 for size in facts["disk"].values())
    assert any(line.split() == ["oldest", "row", "none", "waits"] for line in as_lines(facts))


@pytest.mark.parametrize("step", [0, 1, 2])
def test_the_books_are_those_that_the_queue_had_when_it_ended(step: int, tmp_path: Path) -> None:
    run, small = interrupted_run(tmp_path, after="committed", step=step)
    had, found = msgspec.to_builtins(small.queue.counts()), queue_facts(run)["queue"]
    same = ("next_step", "incarnation", "groups_issued", "groups_trained", "groups_dropped", "tokens_accepted")
    assert {key: found[key] for key in same} == {key: had[key] for key in same}
    # What was leased goes back, what ran waits for somebody to take it, and nothing is reserved while nobody can.
    assert found["groups_ready"] == had["groups_ready"] + had["groups_leased"]
    assert found["groups_running"] == had["groups_running"]
    assert (found["bytes_held"], found["bytes_reserved"]) == (had["bytes_held"], 0)


def test_the_oldest_row_is_told_with_the_time_at_which_it_was_sampled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, small = interrupted_run(tmp_path, after="committed", step=1)
    (expected, facts) = small.queue.oldest(), queue_facts(run)
    if expected is None:
        assert facts["oldest"] is None
        return
    oldest = facts["oldest"]
    assert (oldest["number"], oldest["sample_index"]) == (expected.number, expected.sample_index)
    # The rows of these tests finished one nanosecond after the epoch.
    assert oldest["age_s"] > 10**9
    assert run_app(["queue", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["oldest"]["number"] == expected.number


def test_the_oldest_row_is_of_the_oldest_version_and_of_those_the_lowest_group() -> None:
    index = ReplayIndex(queue_settings(), Order(), VirtualClock())
    assert index.oldest() is None
    for number in (ticket.number for ticket in index.issue("a", 0, 3)):
        # The rollout of group 0 has no token, so no version either.
        oldest = [-1, 0, 0][number]
        index.accept(frame_of(1, number), packed_rows([(number, 1)], [0], [oldest], STOP).packed())
    told = index.oldest()
    assert told is not None
    assert (told.number, told.sample_index, told.oldest_step, told.frame, told.row) == (1, 1, 0, frame_of(1, 1), 0)
    for number, left in ((1, 2), (2, 0)):
        index.drop(number, "cancelled")
        told = index.oldest()
        assert told is not None
        assert told.number == left


def test_a_run_whose_queue_was_never_opened_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path)
    assert run_app(["queue", str(run.path)]) == 2
    assert "its queue was never opened" in capsys.readouterr().err


def test_a_damaged_ledger_is_exit_code_4_with_file_and_offset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = finished_run(tmp_path)
    path = run.path / "queue/ledger/000000.log"
    data = bytearray(path.read_bytes())
    data[50] ^= 1
    path.write_bytes(data)
    assert run_app(["queue", str(run.path)]) == 4
    assert "000000.log: offset " in capsys.readouterr().err
