"""The lines of a run's `metrics.jsonl` as they come: each is read once.

The writer replaces the file when it leaves lines out (its bound, a resume): then all of the new one is read. The file
that was read last stays open, so that its inode cannot become that of another file meanwhile. Whoever uses it makes one
call at a time.
"""

import os
from pathlib import Path

from streamrl.errors import DataError
from streamrl.gateway.page.history import History
from streamrl.observability.metrics import metrics_row


class MetricsTail:
    """Keeps a History up to date. newest: rows that it keeps whole.

    Example:
        tail = MetricsTail(run.metrics_path, newest=100)
        tail.read().reduced(points=2000)
        tail.close()
    """

    def __init__(self, path: Path, newest: int) -> None:
        self._path = path
        self._newest = newest
        self._fd: int | None = None
        self.first_skipped: str
        self._begin()

    def read(self) -> History:
        """All rows by now; none while there is no file. `skipped` counts lines that are no rows."""
        self._follow()
        if self._fd is None:
            return self._history
        content = os.pread(self._fd, os.fstat(self._fd).st_size - self._offset, self._offset)
        # What follows the last newline is being written at this moment.
        for line in content.split(b"\n")[:-1]:
            self._lines += 1
            try:
                self._history.add(metrics_row(self._path, self._lines, line))
            except DataError as error:
                self.skipped += 1
                self.first_skipped = self.first_skipped or str(error)
            self._offset += len(line) + 1
        return self._history

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _begin(self) -> None:
        self._history, self._lines, self._offset = History(self._newest), 0, 0
        self.skipped, self.first_skipped = 0, ""

    def _follow(self) -> None:
        """Have the file of this name open, from its begin when it is another one than before, or shorter."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return
        if self._fd is not None:
            ours = os.fstat(self._fd)
            if (ours.st_ino, ours.st_dev) == (there.st_ino, there.st_dev) and ours.st_size >= self._offset:
                return
        self.close()
        self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self._begin()
