"""One flipped bit anywhere in what a run wrote: found, named, no crash, and no row that was not written.

`FAULT_SCALE=1` flips 20,000 bits, each byte of each small file among them; `SEED` replays.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
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
from streamrl.buffers.segments.format import ENTRY_BYTES, MAGIC
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import DataError
from streamrl.learner.checkpoint import checkpoint
from streamrl.types import FrameRef, Version
from streamrl.weights.manifest import TensorEntry, WeightManifest, combined_digest, decode, encode, sign, verify

FOLDERS = [COMPLETIONS_FOLDER, SCORES_FOLDER]
KEY = b"k" * 32


def flips(size: int, full: int) -> Iterator[tuple[int, int, int]]:
    """(number, byte, bit) of flips in `size` bytes: in each byte once, then anywhere."""
    chance = random.Random(SEED)
    every = list(range(size))
    chance.shuffle(every)
    for number in range(scaled(full)):
        yield number, every[number] if number < size else chance.randrange(size), chance.randrange(8)


def frames_refused(run: Path, refs: list[FrameRef], folder: str, number: int) -> list[str]:
    """Why frames are refused; those that are not are what was written."""
    reader, reasons = SegmentReader(run), []
    for place, ref in enumerate(refs):
        try:
            batch = reader.read(ref)
        except DataError as error:
            reasons.append(str(error))
        else:
            assert batch.equals(MAKE[folder][0](first=place)), replay(number)
    return reasons


def damage_found(run: Path, path: str) -> str:
    """What a look at every byte of a segment says."""
    try:
        SegmentReader(run).verify(path)
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seal", [True, False])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_flip_in_a_segment_is_found_and_gives_no_other_row(tmp_path, folder, seal):
    refs = write_segment(tmp_path, folder, alone=3, seal=seal)
    image = Image(tmp_path / refs[0].path)
    end = refs[-1].offset + refs[-1].length
    for number, place, bit in flips(len(image.data) if seal else end, 1500):
        with image.flipped(place, bit):
            reasons = frames_refused(tmp_path, refs, folder, number)
            if place < end:
                assert reasons, replay(number)
                ref = next((ref for ref in refs if ref.offset <= place < ref.offset + ref.length), None)
                assert f"{refs[0].path}: offset {ref.offset if ref else 0}: " in reasons[0], replay(number)
            assert f"{refs[0].path}: offset " in damage_found(tmp_path, refs[0].path), replay(number)


@pytest.mark.parametrize("seal", [True, False])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_flip_in_an_index_is_found_and_gives_no_other_frame(tmp_path, folder, seal):
    refs = write_segment(tmp_path, folder, alone=2, together=3, seal=seal)
    image = Image((tmp_path / refs[0].path).with_suffix(".idx"))
    end = len(MAGIC) + (1 + len(refs) + seal) * ENTRY_BYTES
    for number, place, bit in flips(end, 1000):
        bad = 0 if place < len(MAGIC) else place - (place - len(MAGIC)) % ENTRY_BYTES
        with image.flipped(place, bit):
            with pytest.raises(DataError, match=rf"w-0-0.idx: offset {bad}: ") as caught:
                list(SegmentReader(tmp_path).scan(refs[0].path))
            assert caught.value, replay(number)
            assert frames_refused(tmp_path, refs, folder, number), replay(number)


@pytest.mark.parametrize("close", [True, False])
def test_a_flip_in_a_ledger_is_found_and_loses_no_record(tmp_path, close):
    image = Image(write_ledger(tmp_path, ledger_records(groups=3), close=close))
    ends = [frame.end for frame in read_frames(memoryview(image.data), "")]
    for number, place, bit in flips(ends[-1], 2500):
        start = max(end for end in [0, *ends] if end <= place)
        with image.flipped(place, bit), pytest.raises(DataError, match=rf"000000.log: offset ({start}|3): ") as caught:
            read_ledger(tmp_path)
        assert caught.value, replay(number)


def test_a_flip_in_the_room_that_is_kept_changes_nothing(tmp_path):
    """Preallocated bytes that nothing was written to are the only ones without a checksum."""
    records = ledger_records(groups=3)
    ledger = Image(write_ledger(tmp_path / "ledger", records, close=False))
    refs = write_segment(tmp_path, SCORES_FOLDER, alone=3, seal=False)
    segment = Image(tmp_path / refs[0].path)
    index = Image(segment.path.with_suffix(".idx"))
    starts = {
        ledger: [frame.end for frame in read_frames(memoryview(ledger.data), "")][-1],
        segment: refs[-1].offset + refs[-1].length,
        index: len(MAGIC) + (1 + len(refs)) * ENTRY_BYTES,
    }
    for image, start in starts.items():
        for number, place, bit in flips(len(image.data) - start, 500):
            near = start + place if number % 2 else start + place % 600
            with image.flipped(near, bit):
                if image is ledger:
                    (file,) = read_ledger(tmp_path / "ledger")
                    assert file.records == [HEADER, *records], replay(number)
                else:
                    assert list(SegmentReader(tmp_path).scan(refs[0].path)) == refs, replay(number)
                    assert not frames_refused(tmp_path, refs, SCORES_FOLDER, number), replay(number)


def weight_manifest() -> WeightManifest:
    entries = (
        TensorEntry("model.embed", "float32", (4, 8), 0, 128, "0123456789abcdef"),
        TensorEntry("model.norm", "bfloat16", (32,), 128, 64, "fedcba9876543210"),
    )
    manifest = WeightManifest(
        run_id="run-1",
        version=Version(1, 300),
        source="shm",
        location="/dev/shm/streamrl-run-1/1.300.weights",
        tensors=entries,
        total_bytes=192,
        digest=combined_digest(entries),
    )
    return sign(manifest, KEY)


def test_a_flip_in_a_weight_manifest_is_refused():
    raw = encode(weight_manifest())
    for number, place, bit in flips(len(raw), 2500):
        data = bytearray(raw)
        data[place] ^= 1 << bit
        with pytest.raises(DataError) as caught:
            verify(decode(bytes(data)), KEY, "run-1")
        assert caught.value, replay(number)


def test_a_flip_in_a_checkpoint_makes_it_be_passed_over_by_name(tmp_path):
    for step in (1, 2):
        tensors = {"model/a": torch.full((3, 4), float(step)), "exp_avg/a": torch.arange(12.0)}
        snapshot = checkpoint.Snapshot(Version(0, step), tensors.items(), ledger_position=step, extra={"n": step})
        checkpoint.save(tmp_path, snapshot, keep=2)
    images = [Image(path) for path in sorted((tmp_path / "step_000002").iterdir())]
    assert len(images) == 3
    sizes = [len(image.data) for image in images]
    for number, place, bit in flips(sum(sizes), 2500):
        image = next(image for i, image in enumerate(images) if place < sum(sizes[: i + 1]))
        place -= sum(sizes[: images.index(image)])
        with image.flipped(place, bit):
            search = checkpoint.find_newest(tmp_path)
        assert search.newest is not None, replay(number)
        assert search.newest.version == Version(0, 1), replay(number)
        assert torch.equal(search.newest.tensor("model/a"), torch.full((3, 4), 1.0)), replay(number)
        (reason,) = search.skipped
        assert "step_000002" in reason, replay(number)
