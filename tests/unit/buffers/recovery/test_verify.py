"""`streamrl queue --verify`: any flipped bit is found, by file and offset; what was never acknowledged is no damage."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.queue.run_files import write_ledger
from support.runs.looked_run import finished_run, interrupted_run, run_folder
from support.runs.small_run import GROUP_SIZE, GROUPS, STEPS, completion_rows

from streamrl.buffers.ledger.facts import ledger_facts
from streamrl.buffers.ledger.frames import pack_frame, read_frames
from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.live_files import LOOKS, read_again
from streamrl.buffers.ledger.records import Covered, RunHeader
from streamrl.buffers.recovery.verify import Damage
from streamrl.buffers.rows.arrow import completions_batch
from streamrl.buffers.rows.partial_rows import Piece, partials_batch
from streamrl.buffers.rows.schema import COMPLETIONS, PARTIALS
from streamrl.buffers.segments.format import ENTRY_BYTES, MAGIC, read_index
from streamrl.buffers.segments.places import COMPLETIONS_DIR, LEDGER_DIR, PARTIALS_DIR, SCORES_DIR
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.errors import DataError
from streamrl.learner.checkpoint import format as checkpoint_format
from streamrl.services.cli.main import run_app
from streamrl.services.inspect.verify import verify_run
from streamrl.services.run.folder import RunFolder
from streamrl.types import PartialTokens, Ticket, Version, VersionSpan

SEED = int(os.environ.get("SEED", "0"))
FLIPS = 60


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return finished_run(tmp_path)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def first(run: RunFolder, pattern: str) -> Path:
    return sorted(run.path.glob(pattern))[0]


def only(run: RunFolder) -> Damage:
    (damage,) = verify_run(run).damage
    return damage


def test_a_run_that_ended_well_is_whole_and_everything_was_looked_at(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = verify_run(run)
    assert (checked.damage, checked.unfinished, checked.queue.gone) == ([], [], [])
    assert checked.checkpoints == [f"step_{STEPS:06}"]
    files = [path for folder in (COMPLETIONS_DIR, SCORES_DIR) for path in (run.path / folder).glob("*.arrow")]
    queue = checked.queue
    assert (queue.segments, queue.rows, queue.ledger_files) == (len(files), 2 * GROUPS * GROUP_SIZE, 1)
    assert queue.frames == queue.acknowledged_frames
    assert queue.records == sum(len(file.records) for file in read_ledger(run.path / LEDGER_DIR))
    assert run_app(["queue", str(run.path), "--verify"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no damage"


def test_a_flip_in_any_file_is_found_in_that_file(run: RunFolder) -> None:
    """Each byte of a run that ended well is under a checksum. `SEED` replays."""
    chance = random.Random(SEED)
    files = [path for folder in ("queue", "checkpoints") for path in sorted((run.path / folder).rglob("*.*"))]
    files = [path for path in files if path.is_file()] + [first(run, "checkpoints/*/COMMITTED")]
    for number in range(FLIPS):
        path = files[number % len(files)]
        where = chance.randrange(path.stat().st_size), chance.randrange(8)
        flip(path, *where)
        found = verify_run(run).damage
        told = f"SEED={SEED}, flip {number}: {path} at {where}: {found}"
        assert found, told
        # The marker and the manifest stand for their folder; a segment cannot be read without its index.
        names = {str(path.relative_to(run.path)), str(path.parent.relative_to(run.path))}
        if path.suffix == ".arrow":
            names.add(str(path.with_suffix(".idx").relative_to(run.path)))
        assert {damage.file for damage in found} & names, told
        assert all(damage.acknowledged for damage in found), told
        flip(path, *where)
    assert verify_run(run).damage == []


@pytest.mark.parametrize("folder", [COMPLETIONS_DIR, SCORES_DIR])
def test_each_damaged_frame_of_a_segment_is_told_with_its_offset(folder: str, run: RunFolder) -> None:
    path = first(run, f"{folder}/*.arrow")
    entries = [entry for entry in read_index(path.with_suffix(".idx").read_bytes(), "") if entry.rows]
    for entry in entries[:2]:
        flip(path, entry.offset + entry.length // 2)
    found = verify_run(run).damage
    assert [(one.file, one.offset) for one in found] == [
        (str(path.relative_to(run.path)), entry.offset) for entry in entries[:2]
    ]


def test_the_end_marker_of_a_sealed_segment_is_checked_too(run: RunFolder) -> None:
    path = first(run, f"{SCORES_DIR}/*.arrow")
    flip(path, path.stat().st_size - 1)
    damage = only(run)
    assert (damage.file, damage.offset) == (str(path.relative_to(run.path)), path.stat().st_size - 8)


def test_a_damaged_tensor_is_told_with_its_name_and_offset(run: RunFolder) -> None:
    path = first(run, "checkpoints/*/tensors_*.safetensors")
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    start = 8 + length + json.loads(raw[8 : 8 + length])["model/trained"]["data_offsets"][0]
    flip(path, start + 3)
    damage = only(run)
    assert (damage.file, damage.offset) == (str(path.relative_to(run.path)), start)
    assert "model/trained" in damage.what


@pytest.mark.parametrize("call", ["read_manifest", "verify_files", "_require_tensors"])
def test_a_checkpoint_that_a_live_run_removes_while_it_is_looked_at_is_no_damage(
    call: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(checkpoint_format, call)
    folders = list(run.checkpoints_path.glob("step_*"))

    def removed_first(*arguments: object) -> object:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return real(*arguments)

    monkeypatch.setattr(checkpoint_format, call, removed_first)
    checked = verify_run(run)
    assert folders
    assert checked.checkpoints == []
    assert [one for one in checked.damage if "checkpoints" in one.file] == []


def test_a_checkpoint_that_is_committed_while_its_files_are_counted_is_left_out(run: RunFolder) -> None:
    folder = run.checkpoints_path / "tmp_step_000009"
    folder.mkdir()
    (folder / "tensors_00000.safetensors").symlink_to(folder / "gone")
    assert verify_run(run).unfinished == []


def test_damage_is_exit_code_4_and_told_in_both_forms(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    path = first(run, f"{LEDGER_DIR}/*.log")
    flip(path, 100)
    assert run_app(["queue", str(run.path), "--verify"]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("DAMAGE") and "queue/ledger/000000.log: offset " in line for line in lines)
    assert run_app(["queue", str(run.path), "--verify", "--json"]) == 4
    (damage,) = json.loads(capsys.readouterr().out)["damage"]
    assert (damage["file"], damage["acknowledged"]) == ("queue/ledger/000000.log", True)
    assert isinstance(damage["offset"], int)


def test_a_process_that_ended_anywhere_left_no_damage(tmp_path: Path) -> None:
    """Segments that nobody sealed, and writes of every kind that were cut short."""
    run, _ = interrupted_run(tmp_path, after="committed", step=2)
    assert verify_run(run).damage == []
    before = len(verify_run(run).unfinished)
    ledger, segment = first(run, f"{LEDGER_DIR}/*.log"), sorted(run.path.glob(f"{COMPLETIONS_DIR}/*.arrow"))[-1]
    index, entries = segment.with_suffix(".idx"), read_index(segment.with_suffix(".idx").read_bytes(), "")
    good = read_ledger(ledger.parent)[0]
    # The run closed its ledger; a killed one leaves room behind it, and perhaps the head of a frame.
    ledger.write_bytes(ledger.read_bytes() + bytes(4096))
    torn = run.path / LEDGER_DIR / "000001.log"
    torn.write_bytes(pack_frame(b"never told to anybody", 0)[:20] + bytes(4096))
    data = bytearray(segment.read_bytes())
    end = entries[-1].offset + entries[-1].length
    data[end : end + 50] = b"x" * 50
    segment.write_bytes(data)
    torn_entry = bytearray(index.read_bytes())
    place = len(MAGIC) + len(entries) * ENTRY_BYTES
    torn_entry[place : place + 10] = b"\xa5E12345678"
    index.write_bytes(torn_entry)
    (run.checkpoints_path / "tmp_step_000009").mkdir()
    (run.checkpoints_path / "tmp_step_000009" / "manifest.json").write_text("{")
    checked = verify_run(run)
    assert checked.damage == []
    found = {(one.file, one.offset, one.num_bytes) for one in checked.unfinished}
    assert len(found) == before + 4
    assert {
        (f"{LEDGER_DIR}/000001.log", 0, 20),
        (str(segment.relative_to(run.path)), end, 50),
        (str(index.relative_to(run.path)), place, 10),
        ("checkpoints/tmp_step_000009", 0, 1),
    } <= found
    assert good.torn_bytes == 0
    assert run_app(["queue", str(run.path), "--verify"]) == 0


def test_an_entry_that_looks_torn_is_damage_where_the_ledger_names_its_frame(tmp_path: Path) -> None:
    """The index alone cannot know: a disk that lost a confirmed sector leaves the same zeros as one that wrote none."""
    run, _ = interrupted_run(tmp_path, after="committed", step=2)
    facts = ledger_facts(read_ledger(run.path / LEDGER_DIR))
    # The newest frame that was acknowledged: its segment is the one that was being written.
    frame = facts.score_frames[-1]
    index = (run.path / frame.path).with_suffix(".idx")
    place = next(at for at, entry in enumerate(read_index(index.read_bytes(), "")) if entry.offset == frame.offset)
    start = len(MAGIC) + place * ENTRY_BYTES
    data = index.read_bytes()
    index.write_bytes(data[:start] + bytes(len(data) - start))
    damage = only(run)
    assert (damage.file, damage.acknowledged) == (str(index.relative_to(run.path)), True)
    assert f"no entry for the frame at offset {frame.offset}" in damage.what


def test_damage_in_what_nobody_accepted_is_told_as_such(run: RunFolder) -> None:
    log = SegmentWriter(run.path, COMPLETIONS_DIR, "stranger", 0, COMPLETIONS, 2**16, "memory", 0.0)
    frame = log.append(completions_batch(completion_rows(Ticket(0, 0, 0, 1, 1), 0))).result()
    log.close()
    assert verify_run(run).queue.frames == verify_run(run).queue.acknowledged_frames + 1
    flip(run.path / frame.path, frame.offset + 200)
    damage = only(run)
    assert (damage.file, damage.offset, damage.acknowledged) == (frame.path, frame.offset, False)


def test_a_file_that_is_gone_is_damage_only_where_a_resume_would_read_it(tmp_path: Path) -> None:
    run, _ = interrupted_run(tmp_path, after="committed", step=2)
    names = {frame.path for frame in ledger_facts(read_ledger(run.path / LEDGER_DIR)).frames}
    for path in sorted(run.path.glob(f"{COMPLETIONS_DIR}/*")):
        path.unlink()
    checked = verify_run(run)
    missing = [damage.file for damage in checked.damage]
    assert sorted(missing + checked.queue.gone) == sorted(names)
    # The checkpoint is of step 2: what steps 0 and 1 trained on is needed no more.
    assert checked.checkpoints == ["step_000002"]
    assert missing
    assert checked.queue.gone


@pytest.mark.parametrize("resumable", [True, False])
def test_an_index_that_is_gone_is_damage_only_where_its_rows_are_needed(resumable: bool, tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    if not resumable:
        # With its checkpoints a run has lost what makes the rows of the trained steps superfluous.
        shutil.rmtree(run.checkpoints_path)
    index = first(run, f"{COMPLETIONS_DIR}/*.idx")
    index.unlink()
    name, checked = str(index.with_suffix(".arrow").relative_to(run.path)), verify_run(run)
    if resumable:
        assert (checked.queue.gone, checked.damage) == ([name], [])
    else:
        assert [damage.file for damage in checked.damage] == [name]


def test_a_segment_whose_writer_ended_while_it_made_it_is_unfinished(run: RunFolder) -> None:
    (run.path / COMPLETIONS_DIR / "replica-9-0-0.arrow").write_bytes(bytes(100))
    checked = verify_run(run)
    assert checked.damage == []
    assert [(one.file, one.num_bytes) for one in checked.unfinished] == [
        (f"{COMPLETIONS_DIR}/replica-9-0-0.arrow", 100)
    ]


def test_journals_of_rollouts_that_have_not_ended_are_checked_too(run: RunFolder) -> None:
    ids, logprobs = np.array([5, 6], np.int32), np.array([-0.5, -1.0], np.float32)
    piece = Piece(0, PartialTokens("g/0", 0, ids, logprobs, (VersionSpan(0, Version(0, 1)),)))
    log = SegmentWriter(run.path, PARTIALS_DIR, "replica-0", 0, PARTIALS, 2**16, "memory", 0.0)
    frame = log.append(partials_batch([piece])).result()
    log.close()
    assert verify_run(run).damage == []
    flip(run.path / frame.path, frame.offset + 100)
    damage = only(run)
    assert (damage.file, damage.offset, damage.acknowledged) == (frame.path, frame.offset, False)


def test_a_ledger_file_that_is_gone_or_was_cut_is_damage(tmp_path: Path) -> None:
    run, _ = interrupted_run(tmp_path, after="committed", step=2)
    ledger = first(run, f"{LEDGER_DIR}/*.log")
    data = ledger.read_bytes()
    os.truncate(ledger, len(data) // 2)
    assert only(run).file == f"{LEDGER_DIR}/000000.log"
    ledger.rename(ledger.with_name("000001.log"))
    assert any("000000.log is missing" in damage.what for damage in verify_run(run).damage)


def test_a_ledger_file_that_ends_before_the_place_that_its_successor_names_is_damage(tmp_path: Path) -> None:
    """Its end alone looks torn: zeros, and nothing behind them."""
    run = run_folder(tmp_path)
    path = write_ledger(run.path / LEDGER_DIR, [Covered(step) for step in range(9)], close=False)
    data, end = path.read_bytes(), read_ledger(path.parent)[0].good_bytes
    header = RunHeader(1, "data", 0, 2, end)
    write_ledger(path.parent, [], close=True, header=header)
    assert verify_run(run).damage == []
    last = list(read_frames(memoryview(data), ""))[-1].start
    path.write_bytes(data[:last] + bytes(len(data) - last))
    damage = only(run)
    assert (damage.file, damage.offset) == (f"{LEDGER_DIR}/000000.log", last)


@pytest.mark.parametrize("bad_looks", [0, 1, LOOKS - 1, LOOKS])
def test_what_a_live_run_is_writing_is_looked_at_again_and_real_damage_stays(bad_looks: int) -> None:
    looks = iter(range(LOOKS))

    def read() -> str:
        if next(looks) < bad_looks:
            raise DataError("damaged")
        return "whole"

    if bad_looks < LOOKS:
        assert read_again(read) == "whole"
    else:
        with pytest.raises(DataError, match="damaged"):
            read_again(read)


def test_a_run_that_has_nothing_yet_is_whole(tmp_path: Path) -> None:
    checked = verify_run(run_folder(tmp_path))
    assert (checked.damage, checked.unfinished, checked.checkpoints) == ([], [], [])
