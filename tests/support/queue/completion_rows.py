"""The rows that replicas of a run have given, as they lie in its files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streamrl.buffers.segments.places import COMPLETIONS_DIR
from streamrl.buffers.segments.reader import SegmentReader


def rows_of(folder: Path) -> Iterator[dict[str, Any]]:
    """folder: of the run."""
    reader = SegmentReader(folder)
    for path in sorted((folder / COMPLETIONS_DIR).glob("*.arrow")):
        for frame in reader.scan(str(path.relative_to(folder))):
            yield from reader.read(frame).to_pylist()
