"""Small files of every kind that a run writes, made by the real writers, and ways to damage and restore them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from streamrl.buffers.ledger.ledger import Ledger
from streamrl.buffers.ledger.records import Accepted, Issued, Record, RunHeader, Step
from streamrl.buffers.rows.arrow import CompletionRows, completions_batch, scores_batch, token_columns
from streamrl.buffers.rows.records import AcceptedRows
from streamrl.buffers.rows.schema import COMPLETIONS, SCORES
from streamrl.buffers.segments.places import on_node
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.types import FinishReason, FrameRef, GenerationResult, SamplingParams, Score, Ticket, Version, VersionSpan

COMPLETIONS_FOLDER, SCORES_FOLDER = "queue/completions", "queue/scores"
HEADER = RunHeader(1, "data", 0, 2, -1)


def completion_rows(*, first: int = 0, count: int = 3) -> CompletionRows:
    """Rows of one group, `first`, of different lengths."""
    lengths = [1 + (first + i) % 4 for i in range(count)]
    results = [
        GenerationResult(
            f"{first}/{i}",
            np.arange(length, dtype=np.int32) + 10 * first,
            np.full(length, -0.5, np.float32),
            (VersionSpan(0, Version(0, first)),),
            FinishReason.STOP,
        )
        for i, length in enumerate(lengths)
    ]
    zeros = np.zeros(count, np.int32)
    return CompletionRows(
        tokens=token_columns([np.array([7, 8], np.int32)] * count, results),
        rollout_id=[result.request_id for result in results],
        branch=zeros,
        group_id=[str(first)] * count,
        prompt_id=["p"] * count,
        stream=["train"] * count,
        data_pass=zeros,
        sample_index=np.arange(count, dtype=np.int32),
        attempt=zeros,
        finish_reason=["stop"] * count,
        sampling=SamplingParams(temperature=0.7),
        seed=np.arange(count, dtype=np.int64),
        turns=np.ones(count, np.int32),
        replica="replica-0",
        started_ns=np.zeros(count, np.int64),
        finished_ns=np.ones(count, np.int64),
        payload=['{"answer":"1"}'] * count,
    )


def completions(*, first: int = 0, count: int = 3) -> pa.RecordBatch:
    return completions_batch(completion_rows(first=first, count=count))


def scores(*, first: int = 0, count: int = 3) -> pa.RecordBatch:
    verdicts = [Score.failed("no") if i == 1 else Score.ok(first + i / 10, {"exact": 1.0}) for i in range(count)]
    names = [f"{first}/{i}" for i in range(count)]
    return scores_batch(names, np.zeros(count, np.int32), verdicts, scorer="s", scored_ns=1)


MAKE = {COMPLETIONS_FOLDER: (completions, COMPLETIONS), SCORES_FOLDER: (scores, SCORES)}


def write_segment(run: Path, folder: str, *, alone: int, together: int = 0, seal: bool) -> list[FrameRef]:
    """A segment with `alone` frames in commits of their own, then `together` frames in one.

    Not sealed, it is left as by a process that was killed.
    """
    batch, schema = MAKE[folder]
    writer = SegmentWriter(run, folder, "w", 0, schema, 2**18, "memory", 0.0)
    refs = [writer.append(batch(first=i)).result() for i in range(alone)]
    writer._committer._interval_s = 3600.0
    futures = [writer.append(batch(first=alone + i)) for i in range(together)]
    if seal:
        writer.close()
    else:
        writer._committer.close()
    return [*refs, *(future.result() for future in futures)]


def write_far_segment(run: Path, node: str, *, frames: int = 4) -> list[FrameRef]:
    """A segment of completions in the run folder `run` of another node; references as that node gives them out."""
    folder = on_node(node, COMPLETIONS_FOLDER)
    for place in (folder, COMPLETIONS_FOLDER):
        (run / place).parent.mkdir(parents=True)
    refs = write_segment(run, COMPLETIONS_FOLDER, alone=frames, seal=False)
    (run / COMPLETIONS_FOLDER).rename(run / folder)
    return [msgspec.structs.replace(ref, path=on_node(node, ref.path)) for ref in refs]


def write_ledger(folder: Path, records: list[Record], *, close: bool, header: RunHeader = HEADER) -> Path:
    """A ledger file with each record in a commit of its own, after the header."""
    ledger = Ledger(folder, header, durability="memory", commit_interval_s=0.0)
    for record in records:
        ledger.append(record).result()
    if close:
        ledger.close()
    else:
        ledger._committer.close()
    return ledger._path


def ledger_records(*, groups: int = 12) -> list[Record]:
    """What a queue would write about `groups` groups, in frames from tens of bytes to several blocks."""
    records: list[Record] = []
    for number in range(groups):
        count = 1 + 40 * (number % 3)
        rows = AcceptedRows.of(completion_rows(first=number, count=count), np.full(count, number, np.int64))
        frame = FrameRef(f"{COMPLETIONS_FOLDER}/w-0-0.arrow", 4096 * number, 4000, count, 2**63 + number, 5)
        records.append(Issued("replica-0", [Ticket(number, number, 0, 0, 2)]))
        records.append(Accepted("replica-0", frame, rows.packed().tobytes()))
    return [*records, Step(0, [0, 1])]


class Image:
    """A file and its whole contents: what was changed is put back afterwards, without writing the rest again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path.read_bytes()

    @contextmanager
    def changed(self, offset: int, data: bytes) -> Iterator[None]:
        """`data` in place of what stands at `offset`."""
        fd = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(fd, data, offset)
            yield
            os.pwrite(fd, self.data[offset : offset + len(data)], offset)
        finally:
            os.close(fd)

    @contextmanager
    def cut(self, size: int) -> Iterator[None]:
        """The file ends after `size` bytes."""
        os.truncate(self.path, size)
        yield
        with self.path.open("r+b") as file:
            file.seek(size)
            file.write(self.data[size:])

    def zeroed(self, start: int, end: int) -> "Iterator[None]":
        """As a write that stopped at `start` leaves it: zeros up to `end`."""
        return self.changed(start, bytes(end - start))

    def flipped(self, offset: int, bit: int) -> "Iterator[None]":
        return self.changed(offset, bytes([self.data[offset] ^ 1 << bit]))
