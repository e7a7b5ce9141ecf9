"""Segments of scores in a run folder."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from streamrl.buffers.rows.arrow import scores_batch
from streamrl.buffers.rows.schema import SCORES
from streamrl.buffers.segments.writer import SegmentWriter
from streamrl.types import FrameRef, Score

FOLDER = "queue/scores"


def scores(*, start=0, count=4, scorer="s") -> pa.RecordBatch:
    verdicts = [Score.ok(float(start + i), {"exact": 1.0}) for i in range(count)]
    names = [f"g{start + i}/0" for i in range(count)]
    return scores_batch(names, np.zeros(count, np.int32), verdicts, scorer=scorer, scored_ns=1)


def writer(run: Path, *, name="s-0", epoch=0, segment_bytes=2**16, durability="disk", schema=SCORES):
    return SegmentWriter(run, FOLDER, name, epoch, schema, segment_bytes, durability, 0.0)


def write(run: Path, *, frames=3, seal=True, **options) -> list[FrameRef]:
    """A segment with frames of four rows, each in a commit of its own."""
    segments = writer(run, **options)
    refs = [segments.append(scores(start=4 * i)).result() for i in range(frames)]
    if seal:
        segments.close()
    else:
        segments._committer.close()  # as a killed process leaves it: no seal
    return refs


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)
