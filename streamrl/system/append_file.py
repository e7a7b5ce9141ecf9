"""A file that lines are appended to, that a full disk does not break, and that stays below a bound where it has one.

Guaranteed: every line is whole, and handed to the operating system before `append` returns, unless the disk is
full: then it is kept in memory, and goes before the next one. What never found room is lost with the process: this
is for what tells of a run, never for what a run is. A file that has half of its bound becomes its predecessor,
`<name>.1`, in place of the one before, and begins anew.
"""

from pathlib import Path

from streamrl.errors import ComponentError
from streamrl.system.disk import NO_ROOM


class AppendFile:
    """Example:
    events = AppendFile(run / "events.jsonl")
    events.append(b'{"kind": "notice"}\\n')
    """

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        """max_bytes: of the file and its predecessor; None for no bound."""
        self._path = path
        self._max_bytes = max_bytes
        self._kept = b""

    @property
    def num_kept(self) -> int:
        """Bytes that found no room yet."""
        return len(self._kept)

    def append(self, line: bytes) -> None:
        """Append a line, its newline included. Raises ComponentError when the disk fails in another way."""
        self._kept += line
        try:
            self._turn()
            with self._path.open("ab", buffering=0) as file:
                while self._kept:
                    # A full disk may take a part of it: the rest follows right behind, so the line stays whole.
                    self._kept = self._kept[file.write(self._kept) or 0 :]
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise ComponentError(f"writing to {self._path} failed: {error.strerror}") from error

    def _turn(self) -> None:
        if self._max_bytes is None or not self._path.exists():
            return
        if self._path.stat().st_size + len(self._kept) > self._max_bytes // 2:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
