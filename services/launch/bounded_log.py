"""The owner's log: text that anybody may print, Ray and the actors among them, in a file that stays below a bound.

Guarantees: the file and its one predecessor, `<name>.1`, together stay below the bound, as the log of any part
does; a line is in the file when it was written. The file is emptied in place and never renamed, since the
watcher and the libraries write to it by a descriptor of their own; what they write in that moment may be lost.
"""

import io
import os
import shutil
from pathlib import Path
from typing import TextIO

from streamrl.observability.logs import MAX_BYTES


def open_bounded(path: Path, max_bytes: int = MAX_BYTES) -> TextIO:
    """A text stream that appends to a log, as `sys.stderr` is one. `max_bytes`: of the log and its predecessor."""
    raw = BoundedFile(path, max_bytes)
    buffered = io.BufferedWriter(raw)  # type: ignore[type-var]
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="backslashreplace", line_buffering=True)


class BoundedFile(io.RawIOBase):
    """A file, opened to append, that turns into its predecessor when half of the bound is reached."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        super().__init__()
        self._path = path
        self._half = max_bytes // 2
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        """Append `data`, or the part of it that fits an empty file."""
        piece = memoryview(data)[: self._half]
        # The size is asked for and not counted: others write too.
        if os.fstat(self._fd).st_size + len(piece) > self._half:
            self._turn()
        return os.write(self._fd, piece)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._fd)

    def _turn(self) -> None:
        """Keep what there is, no more than half of the bound of it, as the predecessor, and begin again."""
        before = self._path.with_name(f"{self._path.name}.1")
        with self._path.open("rb") as full, before.open("wb") as kept:
            full.seek(max(0, os.fstat(full.fileno()).st_size - self._half))
            shutil.copyfileobj(full, kept)
        os.ftruncate(self._fd, 0)
