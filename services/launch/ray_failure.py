"""Why Ray does not come up here: the last words of its own processes, and what is known to keep it from starting.

Ray starts its processes, waits, and says that they "timed out". Why they ended is in their logs, which go away with the
run.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from streamrl.config.estimates.machine import (
    LEAST_OPEN_FILES,
    address_bytes,
    available_memory,
    file_bytes,
    loopback_fault,
    open_files,
    process_count,
)
from streamrl.config.estimates.sizes import human_bytes

LOGS = ("gcs_server.err", "raylet.err", "gcs_server.out", "raylet.out")
"""Those of the processes without which nothing comes up, errors first."""
MARKS = (" E ", " C ", " F ", "Error", "error:", "Check failed", "terminate called")
"""Of a line that tells of a failure."""
LINES = 3
TAIL_BYTES = 2**16
LONGEST = 300
LEAST_MEMORY, LEAST_ADDRESSES, LEAST_PROCESSES = 2**29, 2**33, 256
"""What a node of Ray takes, roughly: where there is less, it is a likely cause. Its processes map far more than they
touch."""


class Surroundings(Struct, frozen=True, kw_only=True):
    """What Ray needs of a machine. Bytes are free ones; shared_memory_bytes is None where there is no /dev/shm.
    loopback: what is wrong with 127.0.0.1, "" for nothing."""

    memory_bytes: int
    shared_memory_bytes: int | None
    folder_bytes: int
    open_files: int
    file_bytes: int
    address_bytes: int
    processes: int
    loopback: str


def read_surroundings(folder: Path) -> Surroundings:
    """As they are now. folder: that Ray writes into."""
    shared = Path("/dev/shm")
    return Surroundings(
        memory_bytes=available_memory(),
        shared_memory_bytes=_free(shared) if shared.is_dir() else None,
        folder_bytes=_free(folder),
        open_files=open_files(),
        file_bytes=file_bytes(),
        address_bytes=address_bytes(),
        processes=process_count(),
        loopback=loopback_fault(),
    )


def likely_causes(found: Surroundings, wanted_shared: int, folder: Path) -> list[str]:
    """A sentence for each thing that is short. wanted_shared: bytes of Ray's object store."""
    shared = found.shared_memory_bytes
    causes = {
        f"{human_bytes(found.memory_bytes)} of memory are free": found.memory_bytes < LEAST_MEMORY,
        "there is no /dev/shm": shared is None,
        f"/dev/shm has {human_bytes(shared or 0)} free, ray.object_store_bytes wants {human_bytes(wanted_shared)}": (
            shared is not None and shared < wanted_shared
        ),
        f"{folder} has {human_bytes(found.folder_bytes)} free": found.folder_bytes < 2**25,
        f"a process may open {found.open_files} files (ulimit -n)": found.open_files < LEAST_OPEN_FILES,
        f"a process may write files of {human_bytes(found.file_bytes)} (ulimit -f)": found.file_bytes < wanted_shared,
        f"a process may map {human_bytes(found.address_bytes)} (ulimit -v)": found.address_bytes < LEAST_ADDRESSES,
        f"a user may have {found.processes} processes and threads (ulimit -u)": found.processes < LEAST_PROCESSES,
        f"127.0.0.1 does not answer ({found.loopback})": bool(found.loopback),
    }
    return [text for text, holds in causes.items() if holds]


def last_words(session: Path) -> list[str]:
    """Of Ray's own processes, at most `LINES` of each that tells of a failure, each with its log's name."""
    words: dict[str, str] = {}
    for name in LOGS:
        lines = _tail(session / "logs" / name)
        telling = [line for line in lines if any(mark in line for mark in MARKS)]
        if name.endswith(".err"):
            telling = telling or lines
        for line in telling[-LINES:]:
            # What an error log tells is in the other one, too.
            words.setdefault(line, f"{name}: {line[:LONGEST]}")
    return list(words.values())


def explain(error: BaseException, words: Iterable[str], causes: Iterable[str]) -> str:
    """One message: what Ray said, what its processes said, and what is likely."""
    parts = [f"a local Ray did not start: {_first_line(error)}"]
    if told := list(words):
        parts.append("its processes said:\n  " + "\n  ".join(told))
    likely = list(causes)
    parts.append("likely, since " + "; ".join(likely) if likely else "nothing that Ray needs is short here")
    return "\n".join(parts)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _free(folder: Path) -> int:
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize
