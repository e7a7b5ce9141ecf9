"""Reads mutated Arrow frames, the checksums made to match, as a reader of a segment would.

    python arrow_mutations.py FOLDER SEED FIRST COUNT

Validation alone stands between the bytes and this process. It prints one JSON object: how many frames were refused
and how many gave rows; rows are checked by plain loops. Before each mutation its number is written to
FOLDER/mutation, so that whoever started this program knows which one ended it.
"""

import json
import math
import mmap
import random
import re
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from support.queue.run_files import COMPLETIONS_FOLDER, SCORES_FOLDER, write_segment

from streamrl.buffers.rows.gather import rollout_rows, score_columns, scoring_rows
from streamrl.buffers.segments.format import ENTRY_BYTES, MAGIC, IndexEntry, frame_checksum, pack_entry, unpack_entry
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.errors import DataError
from streamrl.types import FrameRef

TEMPTING = [0, 1, 2, 7, 8, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
"""Numbers that lengths, offsets and counts break at."""


def mutated(data: bytes, chance: random.Random) -> bytes:
    """`data` with a few changes, most often near its start, where Arrow's own description lies."""
    raw = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        place = chance.randrange(chance.choice([64, len(raw) // 3, len(raw)]))
        way = chance.randrange(6)
        if way <= 1:
            raw[place] ^= 1 << chance.randrange(8)
        elif way == 2:
            raw[place] = chance.randrange(256)
        elif way == 3:
            code, size = chance.choice([("<I", 4), ("<Q", 8), ("<H", 2)])
            start = min(place - place % size, len(raw) - size)
            raw[start : start + size] = struct.pack(code, chance.choice(TEMPTING) % 256**size)
        elif way == 4:
            size, source = chance.choice([4, 8, 64]), chance.randrange(len(raw))
            piece = raw[source : source + size]
            raw[place : place + len(piece)] = piece
            del raw[len(data) :]
        else:
            raw[place : place + 8] = bytes(len(raw[place : place + 8]))
    return bytes(raw)


class Target:
    """A segment of one table that is changed in place: its schema message or one of its frames."""

    def __init__(self, run: Path, folder: str) -> None:
        self._run = run
        self._refs = write_segment(run, folder, alone=3, seal=False)
        path = run / self._refs[0].path
        with path.open("r+b") as file, path.with_suffix(".idx").open("r+b") as index:
            self._data, self._index = mmap.mmap(file.fileno(), 0), mmap.mmap(index.fileno(), 0)
        self._reader = SegmentReader(run)
        self._check = check_completions if folder == COMPLETIONS_FOLDER else check_scores

    def frame(self, chance: random.Random) -> bool:
        """Whether a mutated frame gave rows."""
        ref = chance.choice(self._refs)
        data = bytes(self._data[ref.offset : ref.offset + ref.length])
        changed = mutated(data, chance)
        length = chance.choice([ref.length] * 9 + [chance.randrange(1, ref.length)])
        rows = chance.choice([ref.num_rows] * 9 + [chance.choice([0, 1, 2, 4, 2**31])])
        checksum = frame_checksum(ref.salt, changed[:length])
        self._data[ref.offset : ref.offset + ref.length] = changed
        try:
            return self._gives_rows(self._reader, FrameRef(ref.path, ref.offset, length, rows, checksum, ref.salt))
        finally:
            self._data[ref.offset : ref.offset + ref.length] = data

    def schema(self, chance: random.Random) -> bool:
        """Whether a frame under a mutated schema gave rows."""
        start = len(MAGIC)
        entry = unpack_entry(self._index[start : start + ENTRY_BYTES], 0)
        assert entry is not None
        data, packed = bytes(self._data[: entry.length]), pack_entry(entry, 0)
        changed = mutated(data, chance)
        forged = IndexEntry(*entry._replace(checksum=frame_checksum(entry.salt, changed)))
        self._data[: entry.length] = changed
        self._index[start : start + len(packed)] = pack_entry(forged, 0)
        try:
            return self._gives_rows(SegmentReader(self._run), chance.choice(self._refs))
        finally:
            self._data[: entry.length] = data
            self._index[start : start + len(packed)] = packed

    def _gives_rows(self, reader: SegmentReader, ref: FrameRef) -> bool:
        try:
            batch = reader.read(ref)
        except DataError:
            return False
        assert batch.num_rows == ref.num_rows
        self._check(batch)
        return True


def is_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.:@+=-]*", value) is not None


def is_rollout(value: str) -> bool:
    group, slash, sample = value.rpartition("/")
    return slash == "/" and is_name(group) and re.fullmatch("[0-9]+", sample) is not None


def check_completions(batch: pa.RecordBatch) -> None:
    """What the design promises of each row, and that the learner and the scorer are given these rows."""
    rows = batch.to_pylist()
    for row in rows:
        assert is_rollout(row["rollout_id"])
        assert all(is_name(row[name]) for name in ("group_id", "prompt_id", "stream", "replica"))
        assert row["finish_reason"] in ("stop", "length", "abort", "error")
        ids, origins, logprobs = row["token_ids"], row["token_origin"], row["rollout_logprobs"]
        assert len(ids) == len(origins) == len(logprobs)
        assert set(origins) <= {0, 1, 2}
        assert all(math.isfinite(value) for value in logprobs)
        spans = [(span["start"], (span["incarnation"], span["step"])) for span in row["version_spans"]]
        assert spans == sorted(spans, key=lambda span: span[0])
        assert len({start for start, _ in spans}) == len(spans)
        assert [version for _, version in spans] == sorted(version for _, version in spans)
        assert all(0 <= start < len(ids) for start, _ in spans)
        first = spans[0][0] if spans else len(ids)
        assert 1 not in origins[:first]
        assert None not in row["sampling"].values()
    count = batch.num_rows
    numbers = np.arange(count)
    gathered = rollout_rows([batch], 0 * numbers, numbers, numbers, numbers, np.zeros(count), np.ones(count, np.bool_))
    assert gathered.token_ids.tolist() == [token for row in rows for token in row["token_ids"]]
    wanted = [token for row in rows for token in plain_steps(row)]
    assert gathered.token_steps.tolist() == wanted
    sampled = [i for row in rows for i, kind in zip(row["token_ids"], row["token_origin"], strict=True) if kind == 1]
    assert scoring_rows(batch).sampled_ids.tolist() == sampled


def plain_steps(row: dict[str, Any]) -> list[int]:
    """The step that sampled each token of a row, -1 where none did."""
    steps = []
    for place, kind in enumerate(row["token_origin"]):
        before = [span["step"] for span in row["version_spans"] if span["start"] <= place]
        steps.append(before[-1] if kind == 1 else -1)
    return steps


def check_scores(batch: pa.RecordBatch) -> None:
    """A verdict is valid with a finite reward or failed without one, and the queue is given just that."""
    rows = batch.to_pylist()
    for row in rows:
        assert is_rollout(row["rollout_id"])
        assert is_name(row["scorer"])
        assert row["status"] in ("ok", "failed")
        assert (row["reward"] is not None) == (row["status"] == "ok")
        assert row["reward"] is None or math.isfinite(row["reward"])
        assert None not in [name for name, _ in row["components"]]
    valid, reward = score_columns(batch)
    assert valid.tolist() == [row["status"] == "ok" for row in rows]
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    assert [value for value in reward.tolist() if not math.isnan(value)] == rewards


def main(folder: Path, seed: int, first: int, count: int) -> None:
    targets = [Target(folder, name) for name in (COMPLETIONS_FOLDER, SCORES_FOLDER)]
    seen = {True: 0, False: 0}
    with (folder / "mutation").open("w+b") as file:
        file.write(bytes(8))
        file.flush()
        place = mmap.mmap(file.fileno(), 8)
        for number in range(first, first + count):
            place[:] = struct.pack("<Q", number)
            chance = random.Random(f"{seed}:{number}")
            target = targets[number % 2]
            seen[target.schema(chance) if number % 10 == 9 else target.frame(chance)] += 1
    print(json.dumps({"refused": seen[False], "rows": seen[True]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:5]))
