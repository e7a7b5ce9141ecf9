"""Standard output that may break under a command: a full disk behind it, a pipe that nobody reads, no output at all.

Guarantees: what a command does goes on; what it prints is lost from the first failure on. A closed pipe is how a reader
such as `head` says that it has enough. Any other loss is told on standard error, and a command whose answer it was ends
with an exit code that says so.
"""

import errno
import os
import sys
from typing import IO, Any


class UnbrokenOutput:
    """Stands for a text stream. goes_on: what is told when even a closed pipe must be told, "" for nothing.

    Example:
        sys.stdout = UnbrokenOutput(sys.stdout, goes_on="the run goes on")
        print("ready")
    """

    def __init__(self, stream: IO[str], goes_on: str = "") -> None:
        self._stream = stream
        self.goes_on = goes_on
        self.lost: OSError | None = None
        """What it first failed with."""

    def write(self, text: str) -> int:
        """As of a stream. Never raises OSError."""
        if self.lost is None:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """As of a stream. Never raises OSError."""
        if self.lost is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        self.lost = error
        _discard(self._stream)
        if self.goes_on or error.errno != errno.EPIPE:
            why = f"standard output cannot be written: {error.strerror}"
            try:
                print(f"streamrl: {'; '.join(filter(None, (why, self.goes_on)))}", file=sys.stderr, flush=True)
            except OSError:  # the same disk may be full behind it
                _discard(sys.stderr)


def _discard(stream: IO[str]) -> None:
    """What is buffered still, and what Python flushes at its end, must not fail again: that would be exit code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def unbroken_output(arguments: list[str]) -> UnbrokenOutput:
    """In the place of this process's standard output, whatever that is."""
    runs = arguments[:1] == ["up"]
    return UnbrokenOutput(sys.stdout, "the run goes on; `streamrl status` shows it" if runs else "")
