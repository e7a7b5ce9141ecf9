"""Writes that stopped, blocks that were lost, files that were cut: what was acknowledged is found exactly, or loud.

`FAULT_SCALE=1` tries 20,000 ends and 5,000 sets of blocks; `SEED` replays.
"""

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.faults.fault_scale import SEED, replay, scaled
from support.queue.run_files import (
    COMPLETIONS_FOLDER,
    HEADER,
    MAKE,
    SCORES_FOLDER,
    Image,
    ledger_records,
    write_ledger,
    write_segment,
)

from streamrl.buffers.ledger.frames import read_frames
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Accepted, Record
from streamrl.buffers.segments.format import ENTRY_BYTES, MAGIC
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import DataError
from streamrl.types import FrameRef

FOLDERS = [COMPLETIONS_FOLDER, SCORES_FOLDER]


def places(start: int, end: int, count: int, *, last: int) -> Iterator[tuple[int, int]]:
    """(number, place) of `count` places from `start` to `end`, both possible: the last ones first, then any."""
    chance = random.Random(SEED)
    every = list(range(max(start, end - last), end + 1))
    chance.shuffle(every)
    for number in range(count):
        yield number, every[number] if number < len(every) else chance.randint(start, end)


def ends_of(image: Image) -> list[int]:
    """Where each frame of a good ledger file ends."""
    return [frame.end for frame in read_frames(memoryview(image.data), str(image.path))]


def records_in(folder: Path) -> list[Record]:
    return [record for file in read_ledger(folder) for record in file.records]


def test_a_ledger_write_that_stopped_anywhere_leaves_exactly_the_commits_before_it(tmp_path):
    records = ledger_records()
    image = Image(write_ledger(tmp_path, records, close=False))
    ends = ends_of(image)
    for number, place in places(0, ends[-1], scaled(5000), last=ends[-1] - ends[-4]):
        with image.zeroed(place, ends[-1]):
            whole = sum(end <= place for end in ends)
            assert records_in(tmp_path) == [HEADER, *records][:whole], replay(number)


@pytest.mark.parametrize("close", [True, False])
def test_a_ledger_that_was_cut_is_loud_wherever_it_was_cut(tmp_path, close):
    """Every place of it was acknowledged: a file that was not closed keeps room behind its last frame."""
    image = Image(write_ledger(tmp_path, ledger_records(), close=close))
    ends = ends_of(image)
    for number, place in places(1, ends[-1] - close, scaled(2500), last=ends[-1] - ends[-4]):
        start = max(end for end in [0, *ends] if end <= place)
        with image.cut(place), pytest.raises(DataError, match=rf"000000.log: offset {start}: ") as caught:
            records_in(tmp_path)
        assert "cut" in str(caught.value), replay(number)


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_index_write_that_stopped_anywhere_leaves_exactly_the_frames_before_it(tmp_path, folder):
    refs = write_segment(tmp_path, folder, alone=6, together=14, seal=False)
    image = Image((tmp_path / refs[0].path).with_suffix(".idx"))
    end = len(MAGIC) + (1 + len(refs)) * ENTRY_BYTES
    for number, place in places(0, end, scaled(2500), last=3 * ENTRY_BYTES):
        with image.zeroed(place, end):
            whole = max(0, (place - len(MAGIC)) // ENTRY_BYTES - 1)
            assert list(SegmentReader(tmp_path).scan(refs[0].path)) == refs[:whole], replay(number)


@pytest.mark.parametrize("seal", [True, False])
def test_an_index_that_was_cut_is_loud_wherever_it_was_cut(tmp_path, seal):
    refs = write_segment(tmp_path, SCORES_FOLDER, alone=6, together=14, seal=seal)
    image = Image((tmp_path / refs[0].path).with_suffix(".idx"))
    end = len(MAGIC) + (1 + len(refs) + seal) * ENTRY_BYTES
    for number, place in places(len(MAGIC), end - seal, scaled(1250), last=3 * ENTRY_BYTES):
        bad = len(MAGIC) + (place - len(MAGIC)) // ENTRY_BYTES * ENTRY_BYTES
        with image.cut(place), pytest.raises(DataError, match=rf"w-0-0.idx: offset {bad}: .*cut") as caught:
            list(SegmentReader(tmp_path).scan(refs[0].path))
        assert caught.value, replay(number)


@pytest.mark.parametrize("way", ["zeroed", "cut"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_segment_keeps_every_frame_before_its_end_and_is_loud_about_the_others(tmp_path, folder, way):
    refs = write_segment(tmp_path, folder, alone=6, seal=False)
    image = Image(tmp_path / refs[0].path)
    end = refs[-1].offset + refs[-1].length
    for number, place in places(0, end, scaled(1250), last=refs[-1].length + refs[-2].length):
        # A frame may end in zeros of its own: what is lost is what was not zero.
        whole = len(image.data[:end].rstrip(b"\0")) if way == "zeroed" else end
        lost: AbstractContextManager[None] = image.cut(place) if way == "cut" else image.zeroed(place, end)
        with lost:
            check_frames(tmp_path, refs, folder, place if place < whole else end, number)


def check_frames(run: Path, refs: list[FrameRef], folder: str, end: int, number: int) -> None:
    """Frames up to `end` are read exactly, or not at all where even the schema is gone; the others are refused."""
    for place, ref in enumerate(refs):
        reader = SegmentReader(run)
        batch, reason = None, ""
        try:
            batch = reader.read(ref)
        except DataError as error:
            reason = str(error)
        if batch is None:
            assert ref.path in reason, replay(number)
            assert ref.offset + ref.length > end or end < refs[0].offset, replay(number)
        else:
            assert batch.equals(MAKE[folder][0](first=place)), replay(number)
            assert ref.offset + ref.length <= end or not any_byte(run, ref, end), replay(number)


def any_byte(run: Path, ref: FrameRef, end: int) -> bool:
    """Whether a frame has lost more than zeros behind `end`."""
    data = (run / ref.path).read_bytes()
    return len(data) < ref.offset + ref.length or any(data[max(end, ref.offset) : ref.offset + ref.length])


# Blocks of a write that was not synced, each there or not


def partly_written(before: bytes, after: bytes, chance: random.Random) -> tuple[bytes, bool]:
    """`before` with some of the blocks in which `after` differs; whether all of them are there."""
    size = chance.choice([512, 4096])
    changed = [at for at in range(0, len(after), size) if before[at : at + size] != after[at : at + size]]
    kept = [at for at in changed if chance.random() < chance.choice([0.2, 0.5, 0.9])]
    data = bytearray(before)
    for at in kept:
        data[at : at + size] = after[at : at + size]
    return bytes(data), kept == changed


def test_a_ledger_commit_whose_blocks_did_not_all_arrive_was_never_there(tmp_path):
    records = ledger_records()
    big = Accepted("replica-0", FrameRef("x.arrow", 0, 1, 1, 2**63, 5), random.Random(1).randbytes(30_000))
    path = write_ledger(tmp_path, [*records, big], close=False)
    after = path.read_bytes()
    frames = list(read_frames(memoryview(after), ""))
    before = after[: frames[-2].end].ljust(len(after), b"\0")
    for number in range(scaled(2500)):
        data, whole = partly_written(before, after, random.Random(SEED + number))
        path.write_bytes(data)
        expected = [HEADER, *records, big] if whole else [HEADER, *records]
        assert records_in(tmp_path) == expected, replay(number)


def test_a_block_that_was_lost_before_a_good_commit_is_loud(tmp_path):
    """A disk that confirmed a block and lost it: the commit behind it tells."""
    ledger = Image(write_ledger(tmp_path / "ledger", ledger_records(), close=False))
    refs = write_segment(tmp_path, SCORES_FOLDER, alone=60, seal=False)
    index = Image((tmp_path / refs[0].path).with_suffix(".idx"))
    ends = {ledger: ends_of(ledger)[-2], index: len(MAGIC) + len(refs) * ENTRY_BYTES}

    def look(image: Image) -> list:
        return records_in(tmp_path / "ledger") if image is ledger else list(SegmentReader(tmp_path).scan(refs[0].path))

    for number in range(scaled(1000)):
        chance = random.Random(SEED + number)
        image = chance.choice([ledger, index])
        size = chance.choice([512, 4096])
        start = size * chance.randrange(ends[image] // size + 1)
        end = min(start + size, ends[image])
        with image.zeroed(start, end), pytest.raises(DataError, match=rf"{image.path.name}: offset ") as caught:
            look(image)
        assert caught.value, replay(number)


@pytest.mark.parametrize("over", ["zeros", "a segment"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_segment_commit_whose_blocks_did_not_all_arrive_takes_nothing_from_those_before_it(tmp_path, folder, over):
    """First the data is unsynced, with no entry of it in the index; then the entries are, over synced data.

    over: what lay there before: a segment may be written over an older one (`streamrl.buffers.segments.spare_files`).
    """
    refs = write_segment(tmp_path, folder, alone=3, together=40, seal=False)
    acked, later = refs[:3], refs[3:]
    lay_there = b""
    if over == "a segment":
        (tmp_path / "before").mkdir()
        [*_, last] = write_segment(tmp_path / "before", folder, alone=43, seal=False)
        lay_there = (tmp_path / "before" / last.path).read_bytes()
    data_path = tmp_path / refs[0].path
    index_path = data_path.with_suffix(".idx")
    data, index = data_path.read_bytes(), index_path.read_bytes()
    data_before = (data[: later[0].offset] + lay_there[later[0].offset :]).ljust(len(data), b"\0")
    index_before = index[: len(MAGIC) + 4 * ENTRY_BYTES].ljust(len(index), b"\0")
    for number in range(scaled(1250)):
        chance = random.Random(SEED + number)
        if number % 2:
            data_path.write_bytes(partly_written(data_before, data, chance)[0])
            index_path.write_bytes(index_before)
            found = list(SegmentReader(tmp_path).scan(refs[0].path))
            assert found == acked, replay(number)
        else:
            data_path.write_bytes(data)
            index_path.write_bytes(partly_written(index_before, index, chance)[0])
            found = list(SegmentReader(tmp_path).scan(refs[0].path))
            assert acked == found[:3], replay(number)
            assert found == refs[: len(found)], replay(number)
        reader = SegmentReader(tmp_path)
        for place, ref in enumerate(found):
            assert reader.read(ref).equals(MAKE[folder][0](first=place)), replay(number)
