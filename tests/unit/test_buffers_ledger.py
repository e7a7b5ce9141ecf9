"""The ledger: what was acknowledged is read back in order, a torn end is cut, damage is loud."""

import errno
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from buffers.ledger import HEADER_BYTES, Ledger, pack_frame, read_ledger
from buffers.ledger_records import Accepted, Covered, Dropped, Issued, Record, RunHeader, Scored, Step, Writer
from streamrl.errors import ComponentError, DataError, FencedError, ResourceError
from streamrl.types import FrameRef, Ticket

FRAME = FrameRef("queue/completions/r-0-0.arrow", 8, 16, 1, 2**63, 5)
SOME: list[Record] = [
    Writer("replica-0", 3),
    Issued("replica-0", [Ticket(0, 5, 0, 0, 2), Ticket(1, 6, 0, 1, 2)]),
    Accepted("replica-0", FRAME, b"rows"),
    Scored("reward", FRAME, b"rows"),
    Dropped([4, 5], "reward_failed"),
    Step(0, [0, 1]),
    Covered(1),
]


def header(*, previous=-1) -> RunHeader:
    return RunHeader(1, "data", 0, 8, previous)


def write(folder, records, *, previous=-1, close=True, durability="disk"):
    """A file with each record in a commit of its own."""
    ledger = Ledger(folder, header(previous=previous), durability=durability, commit_interval_s=0.0)
    for record in records:
        ledger.append(record).result()
    if close:
        ledger.close()
    else:
        ledger._committer.close()  # as a killed process leaves it: preallocated zeros at the end
    return ledger._path


def read(folder) -> list[Record]:
    return [record for file in read_ledger(folder) for record in file.records]


def frame_ends(path) -> list[int]:
    """Where each frame of a good file ends."""
    data, ends, start = path.read_bytes(), [], 0
    while data[start : start + 3] == b"SRL":
        start += HEADER_BYTES + int.from_bytes(data[start + 4 : start + 8], "little")
        ends.append(start)
    return ends


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("durability", ["disk", "memory"])
def test_records_come_back_in_the_order_in_which_they_were_appended(tmp_path, close, durability):
    write(tmp_path, SOME, close=close, durability=durability)
    assert read(tmp_path) == [header(), *SOME]


def test_records_appended_together_share_a_commit_and_keep_their_order(tmp_path):
    ledger = Ledger(tmp_path, header(), durability="disk", commit_interval_s=0.01)
    futures = [ledger.append(Covered(i)) for i in range(500)]
    futures[-1].result()
    assert all(future.done() for future in futures)
    ledger.close()
    assert read(tmp_path) == [header(), *(Covered(i) for i in range(500))]
    assert len(frame_ends(tmp_path / "000000.log")) < 50


def test_a_ledger_grows_beyond_what_was_allocated_at_once(tmp_path):
    big = Accepted("r", FRAME, bytes(400_000))
    write(tmp_path, [big] * 6)
    assert read(tmp_path) == [header(), *[big] * 6]


def test_every_opening_starts_a_file_and_leaves_the_older_ones_alone(tmp_path):
    write(tmp_path, SOME[:3], close=False)
    before = (tmp_path / "000000.log").read_bytes()
    (file,) = read_ledger(tmp_path)
    write(tmp_path, SOME[3:], previous=file.good_bytes)
    assert (tmp_path / "000000.log").read_bytes() == before
    assert read(tmp_path) == [header(), *SOME[:3], header(previous=file.good_bytes), *SOME[3:]]


def test_every_cut_of_the_last_frames_yields_the_frames_before_it(tmp_path):
    path = write(tmp_path, SOME)
    data, ends = path.read_bytes(), frame_ends(path)
    for size in range(ends[-3], len(data) + 1):
        for tail in (b"", bytes(64)):
            path.write_bytes(data[:size] + tail)
            whole = sum(end <= size for end in ends)
            assert read(tmp_path) == [header(), *SOME][:whole]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flip_is_loud_or_in_the_last_frame(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("ledger")
    path = write(folder, SOME, durability="memory")
    whole, ends = bytearray(path.read_bytes()), frame_ends(path)
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(whole))
    if place >= ends[-2]:
        assert read(folder) == [header(), *SOME[:-1]]
        return
    start = max(end for end in [0, *ends] if end <= place)
    with pytest.raises(DataError, match=rf"000000.log: offset {start}: damaged frame"):
        read(folder)


def test_a_last_frame_that_a_later_file_counts_on_is_damage_and_no_torn_end(tmp_path):
    path = write(tmp_path, SOME)
    good = frame_ends(path)
    write(tmp_path, [Covered(9)], previous=good[-1])
    os.truncate(path, good[-1] - 1)
    with pytest.raises(DataError, match=rf"offset {good[-2]}: .*was begun after {good[-1]} bytes"):
        read(tmp_path)


def test_blocks_of_an_unsynced_commit_that_arrived_out_of_order_are_a_torn_end(tmp_path):
    path = write(tmp_path, SOME)
    data, ends = bytearray(path.read_bytes()), frame_ends(path)
    records = msgspec.msgpack.encode([Accepted("r", FRAME, bytes(range(256)) * 40)])
    torn = bytearray(pack_frame(records, len(ends)))
    torn[512:1024] = bytes(512)
    path.write_bytes(bytes(data) + bytes(torn))
    assert read(tmp_path) == [header(), *SOME]


def test_a_missing_file_of_the_row_is_named(tmp_path):
    for previous in (-1, 0, 0):
        write(tmp_path, SOME[:1], previous=previous)
    (tmp_path / "000001.log").unlink()
    with pytest.raises(DataError, match=r"000001.log is missing"):
        read_ledger(tmp_path)


def test_a_record_of_a_newer_release_is_refused_with_its_offset(tmp_path):
    path = write(tmp_path, SOME[:1])
    data = path.read_bytes()
    newer = pack_frame(msgspec.msgpack.encode([[99, "what"]]), len(frame_ends(path)))
    path.write_bytes(data + newer)
    with pytest.raises(DataError, match=rf"offset {len(data)}: a record that this release does not know"):
        read_ledger(tmp_path)


def test_an_empty_file_of_a_process_that_died_at_once_is_no_obstacle(tmp_path):
    (tmp_path / "000000.log").touch()
    (file,) = read_ledger(tmp_path)
    assert (file.good_bytes, file.records) == (0, [])
    write(tmp_path, SOME, previous=0)
    assert read(tmp_path) == [header(previous=0), *SOME]


def test_two_processes_that_open_one_ledger_do_not_share_a_file(tmp_path, monkeypatch):
    write(tmp_path, SOME)
    monkeypatch.setattr("buffers.ledger.ledger_files", lambda folder: [])
    with pytest.raises(FencedError, match=r"000000.log exists"):
        write(tmp_path, SOME)


def test_a_failed_sync_fails_every_later_append(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path, header(), durability="disk", commit_interval_s=0.0)
    calls = []

    def fail(fd):
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(ComponentError, match="fdatasync of"):
        ledger.append(Covered(1)).result()
    with pytest.raises(ComponentError, match="fdatasync of"):
        ledger.append(Covered(2))
    assert len(calls) == 1
    ledger.close()


def test_a_full_disk_shows_before_a_frame_is_begun(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path, header(), durability="disk", commit_interval_s=0.0)

    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ResourceError, match="no room for"):
        ledger.append(Accepted("r", FRAME, bytes(2**20))).result()
    ledger.append(Covered(1)).result()
    ledger.close()
    assert read(tmp_path) == [header(), Covered(1)]
