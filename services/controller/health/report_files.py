"""Reports for people beside the logs of a run: stacks of one that stands still, deaths of its parts.

Guarantees: all reports together stay within the budget that their writers share: the oldest go, and a text that is
longer loses its end. One whose name is there is whole.
"""

import time
from contextlib import suppress
from itertools import chain
from pathlib import Path

from streamrl.services.run.folder import write_whole

STACKS, DEATH = "stacks", "death"
"""Kinds of report."""


def write_report(folder: Path, kind: str, text: str, budget: int, subject: str = "") -> Path:
    """A further report. kind: one of those above. budget: bytes of all in `folder`. subject: of whom it is."""
    content = text.encode(errors="replace")
    if len(content) > budget:
        note = f"\n... and {len(content)} bytes in all, more than their share of observe.log_bytes\n".encode()
        content = content[: max(0, budget - len(note))] + note[:budget]
    room = budget - len(content)
    for _, num_bytes, path in sorted(_reports(folder), reverse=True):
        room -= num_bytes
        if room < 0:
            path.unlink(missing_ok=True)
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    path = folder / f"{'-'.join(filter(None, (kind, when, subject)))}.txt"
    write_whole(path, content)
    return path


def _reports(folder: Path) -> list[tuple[int, int, Path]]:
    """(when it was written, bytes, path) of each."""
    found = []
    for path in chain.from_iterable(folder.glob(f"{kind}-*.txt") for kind in (STACKS, DEATH)):
        with suppress(FileNotFoundError):  # another process may have needed the room
            stat = path.stat()
            found.append((stat.st_mtime_ns, stat.st_size, path))
    return found
