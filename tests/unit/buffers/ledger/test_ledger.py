"""The ledger: what was acknowledged is read back in order, a torn end is cut, damage is loud."""

import errno
import os
import threading
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.queue.queue_parts import leave

from streamrl.buffers.ledger.frames import FRAME_BYTES, HEADER_BYTES, MAGIC, pack_frame
from streamrl.buffers.ledger.ledger import Ledger, read_ledger
from streamrl.buffers.ledger.records import Accepted, Covered, Dropped, Issued, Record, RunHeader, Scored, Step, Writer
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
        leave(ledger)
    return ledger._path


def read(folder) -> list[Record]:
    return [record for file in read_ledger(folder) for record in file.records]


def frame_ends(path) -> list[int]:
    """Where each frame of a good file ends; the last one of a closed file is the one that closes it."""
    data, ends, start = path.read_bytes(), [], 0
    while data[start : start + 4] == MAGIC:
        start += FRAME_BYTES + int.from_bytes(data[start + 4 : start + 8], "little")
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


def test_a_closed_file_ends_with_its_last_frame_and_a_second_close_is_harmless(tmp_path):
    ledger = Ledger(tmp_path, header(), durability="disk", commit_interval_s=0.0)
    ledger.close()
    ledger.close()
    assert frame_ends(ledger._path)[-1] == ledger._path.stat().st_size


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


def test_every_write_that_stopped_in_the_last_frames_yields_the_frames_before_it(tmp_path):
    path = write(tmp_path, SOME, close=False)
    data, ends = path.read_bytes()[:4096], frame_ends(path)
    for size in range(ends[-3], ends[-1] + 1):
        path.write_bytes(data[:size] + bytes(len(data) - size))
        whole = sum(end <= size for end in ends)
        assert read(tmp_path) == [header(), *SOME][:whole]


@pytest.mark.parametrize("close", [True, False])
def test_every_cut_that_takes_a_byte_of_a_frame_is_loud(tmp_path, close):
    """A file that was not closed keeps room behind its last frame, so its end is no place to stop."""
    path = write(tmp_path, SOME, close=close)
    data, ends = path.read_bytes(), frame_ends(path)
    for size in range(ends[-3], ends[-1] + (not close)):
        path.write_bytes(data[:size])
        start = max(end for end in ends if end <= size)
        with pytest.raises(DataError, match=rf"000000.log: offset {start}: .*cut"):
            read(tmp_path)
    path.write_bytes(data[: ends[-1] + 1])
    assert read(tmp_path) == [header(), *SOME]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_flip_is_loud_and_names_the_frame(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("ledger")
    path = write(folder, SOME, durability="memory", close=data.draw(st.booleans()))
    whole, ends = bytearray(path.read_bytes()), frame_ends(path)
    place = data.draw(st.integers(0, ends[-1] - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(whole))
    start = max(end for end in [0, *ends] if end <= place)
    what = "offset 3: framing version" if place == 3 else rf"offset {start}: damaged frame|offset {start}: .* cut"
    with pytest.raises(DataError, match=rf"000000.log: ({what})"):
        read(folder)


def test_any_flip_in_the_header_of_the_last_frame_is_loud_and_no_torn_end(tmp_path):
    """A wrong length would put the frame's end into zeros, as that of a write that stopped."""
    path = write(tmp_path, SOME, close=False)
    whole, start = bytearray(path.read_bytes()[:4096]), frame_ends(path)[-2]
    for bit in range(8 * HEADER_BYTES):
        whole[start + bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(whole))
        with pytest.raises(DataError, match=rf"offset {start}: damaged frame, written to its end"):
            read(tmp_path)
        whole[start + bit // 8] ^= 1 << bit % 8


def test_a_frame_that_is_gone_with_a_good_one_behind_it_is_loud(tmp_path):
    path = write(tmp_path, SOME, close=False)
    data, ends = path.read_bytes(), frame_ends(path)
    for start, end in pairwise([0, *ends[:-1]]):
        path.write_bytes(data[:start] + bytes(end - start) + data[end:])
        with pytest.raises(DataError, match=rf"offset {start}: .*good one behind it at offset {end}"):
            read(tmp_path)


def test_a_good_frame_in_another_place_than_its_own_is_loud(tmp_path):
    path = write(tmp_path, [Covered(1), Covered(2)])
    data, (_, start, middle, end) = path.read_bytes(), [0, *frame_ends(path)[:3]]
    for moved in (data[middle:end] + data[start:middle], data[start:middle] * 2):
        path.write_bytes(data[:start] + moved + data[end:])
        with pytest.raises(DataError, match="damaged frame"):
            read(tmp_path)


@pytest.mark.parametrize("close", [True, False])
def test_a_frame_that_would_fill_the_room_to_its_last_byte_gets_more(tmp_path, close):
    """Else the file of a process that was killed would end like one that was cut, or could not be closed."""
    room = 2**20
    path = write(tmp_path / "one", [Accepted("r", FRAME, bytes(room // 2))], close=False)
    least = frame_ends(path)[-1]
    for short in (0, 1, FRAME_BYTES):
        records = [Accepted("r", FRAME, bytes(room // 2 + room - least - short))]
        path = write(tmp_path / str(short), records, close=close)
        assert frame_ends(path)[1] == room - short
        assert read(tmp_path / str(short)) == [header(), *records]


def test_room_is_durable_before_a_frame_is_begun_in_it(tmp_path, monkeypatch):
    """A power cut could else leave a frame that its file is too short for."""
    calls = []
    for name in ("posix_fallocate", "fdatasync", "pwrite"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, real=real: (calls.append(name), real(*args))[1])
    ledger = Ledger(tmp_path, header(), durability="disk", commit_interval_s=0.0)
    calls.clear()
    ledger.append(Accepted("r", FRAME, bytes(2**20))).result()
    ledger.close()
    assert calls[:4] == ["posix_fallocate", "fdatasync", "pwrite", "fdatasync"]


def test_any_flip_in_the_room_behind_the_last_frame_changes_nothing(tmp_path):
    path = write(tmp_path, SOME, close=False)
    whole, end = bytearray(path.read_bytes()[:8192]), frame_ends(path)[-1]
    for place in range(end, len(whole)):
        whole[place] ^= 1 << place % 8
        path.write_bytes(bytes(whole))
        assert read(tmp_path) == [header(), *SOME]
        whole[place] = 0


def test_a_last_frame_that_a_later_file_counts_on_is_damage_and_no_torn_end(tmp_path):
    path = write(tmp_path, SOME, close=False)
    good = frame_ends(path)
    write(tmp_path, [Covered(9)], previous=good[-1])
    data = path.read_bytes()
    path.write_bytes(data[: good[-1] - 1] + bytes(len(data) - good[-1] + 1))
    with pytest.raises(DataError, match=rf"offset {good[-2]}: .*was begun after {good[-1]} bytes"):
        read(tmp_path)


def test_blocks_of_an_unsynced_commit_that_arrived_out_of_order_are_a_torn_end(tmp_path):
    path = write(tmp_path, SOME, close=False)
    ends = frame_ends(path)
    data = path.read_bytes()[: ends[-1]]
    records = msgspec.msgpack.encode([Accepted("r", FRAME, bytes(range(256)) * 40)])
    torn = bytearray(pack_frame(records, len(ends)))
    lost = 1024 - len(data) % 512
    torn[lost : lost + 512] = bytes(512)
    path.write_bytes(data + bytes(torn) + bytes(64))
    assert read(tmp_path) == [header(), *SOME]


def test_a_missing_file_of_the_row_is_named(tmp_path):
    for previous in (-1, 0, 0):
        write(tmp_path, SOME[:1], previous=previous)
    (tmp_path / "000001.log").unlink()
    with pytest.raises(DataError, match=r"000001.log is missing"):
        read_ledger(tmp_path)


def test_a_record_of_a_newer_release_is_refused_with_its_offset(tmp_path):
    path = write(tmp_path, SOME[:1], close=False)
    data = path.read_bytes()[: frame_ends(path)[-1]]
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
    monkeypatch.setattr("streamrl.buffers.ledger.ledger.ledger_files", lambda folder: [])
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


def test_a_full_disk_is_waited_out_before_a_frame_is_begun(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path, header(), durability="disk", commit_interval_s=0.0)
    tried, real = threading.Semaphore(0), os.posix_fallocate
    big = Accepted("r", FRAME, bytes(2**20))

    def full(fd, offset, length):
        tried.release()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    futures = [ledger.append(big), ledger.append(Covered(1))]
    assert tried.acquire(timeout=30)
    assert tried.acquire(timeout=30)
    assert "no room for" in ledger.pause
    assert not any(future.done() for future in futures)
    monkeypatch.setattr(os, "posix_fallocate", real)
    for future in futures:
        future.result(30)
    assert ledger.pause == ""
    ledger.close()
    assert read(tmp_path) == [header(), big, Covered(1)]


def test_closing_gives_up_what_waits_for_room_and_everything_behind_it(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path, header(), durability="disk", commit_interval_s=0.0)
    tried = threading.Event()

    def full(fd, offset, length):
        tried.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    futures = [ledger.append(Accepted("r", FRAME, bytes(2**20)))]
    assert tried.wait(30)
    # It would fit, but it may count on what does not.
    futures.append(ledger.append(Covered(1)))
    ledger.close()
    for future in futures:
        with pytest.raises(ResourceError, match=r"no room for \d+ bytes of .*MB free. Free disk space"):
            future.result(30)
    assert read(tmp_path) == [header()]
