"""What the learner kept of single tokens, found by step, live or afterwards: each line is looked at once.

The writer lets the older half of a file go by giving it another name, so a file is known by its inode, and stays open:
its inode cannot become that of another file meanwhile. Whoever uses it makes one call at a time.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from streamrl.errors import DataError
from streamrl.observability.token_figures import RowFigures, StepFigures, figures_of, step_of
from streamrl.types import FrameRef

CHUNK = 4 * 2**20
"""Bytes that are read at once, unless a line is longer."""


class TokenLines:
    """Example:
    lines = TokenLines(run.tokens_path)
    lines.follow()
    figures = lines.of_row(step=7, frame=row.frame, row=row.row)
    lines.close()
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[tuple[int, int], _LineFile] = {}
        """By device and inode, the newest first."""
        self._decoded: dict[int, list[StepFigures]] = {}
        """Of the steps that were asked for since the last `follow`."""

    def follow(self) -> None:
        """Take in what was written since the last call."""
        self._decoded.clear()
        files = {}
        for path in sorted(self._folder.glob("*.jsonl*"), key=lambda path: path.suffix == ".1"):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # it was given another name meanwhile
            found = os.fstat(fd)
            known = self._files.pop((found.st_dev, found.st_ino), None)
            if known is not None:
                os.close(fd)
            files[found.st_dev, found.st_ino] = known or _LineFile(fd)
        self.close()
        self._files = files
        for file in files.values():
            file.follow()

    def of_row(self, step: int, frame: FrameRef, row: int) -> RowFigures | None:
        """What the learner found for a row in a step; None where nothing is kept of it."""
        for figures in self._of_step(step):
            if (found := figures.of_row(frame.path, frame.offset, row)) is not None:
                return found
        return None

    def close(self) -> None:
        for file in self._files.values():
            os.close(file.fd)
        self._files = {}

    def _of_step(self, step: int) -> list[StepFigures]:
        if step not in self._decoded:
            found = (file.of(step) for file in self._files.values())
            self._decoded[step] = [figures for figures in found if figures is not None]
        return self._decoded[step]


class _LineFile:
    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._offset = 0
        self._places: dict[int, tuple[int, int]] = {}
        """(offset, length) of the newest line of each step."""

    def follow(self) -> None:
        for line in self._new_lines():
            with suppress(DataError):  # torn by a kill, or of another program: no figure is worth a page
                self._places[step_of(line)] = self._offset, len(line)
            self._offset += len(line) + 1

    def of(self, step: int) -> StepFigures | None:
        if step not in self._places:
            return None
        offset, length = self._places[step]
        try:
            return figures_of(os.pread(self.fd, length, offset))
        except DataError:
            return None

    def _new_lines(self) -> Iterator[bytes]:
        size = CHUNK
        while content := os.pread(self.fd, size, self._offset):
            *lines, _ = content.split(b"\n")
            if not lines and len(content) < size:
                return  # being written at this moment
            size = CHUNK if lines else 2 * size
            yield from lines
