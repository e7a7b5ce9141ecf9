"""Small runs on a disk that is full or broken at one place of the run, and what became of them.

    python disk_errors.py broken SEED FOLDER N    EIO at N calls, each in a process of its own
    python disk_errors.py full SEED FOLDER N      ENOSPC from each of N allocating calls on, until three tries failed
    python disk_errors.py tmpfs SEED FOLDER N     a real small disk under FOLDER, full at N different places; a file of
                                                  another program is in the way, and goes when three tries failed

Prints one JSON object: what became of each run, counted, and the failures. `full` and `tmpfs` expect that a run pauses
and goes on by itself to its end; only one that finds no room for its ledger when it opens may be refused.
"""

import asyncio
import errno
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.faults.disk_shim import Before, DiskShim, Point
from support.runs.small_run import Book, SmallRun

import streamrl.buffers.ledger.ledger
import streamrl.system.disk_space
from streamrl.errors import ComponentError, ResourceError

ALLOCATING = ("create", "mkdir", "posix_fallocate")
TRIES = 3
BALLAST = "ballast"
Launch = Callable[[Path, Path], str]
"""Runs in `folder` with the book in a file; returns what became of it."""


class Broken:
    """A disk that fails one call."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.hit = False

    def __call__(self, point: Point) -> None:
        if point.number == self._number:
            self.hit = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class Full:
    """A disk that has no room from one allocating call on, for so many tries."""

    def __init__(self, first: int) -> None:
        self._left = TRIES
        self._first = first
        self._seen = 0

    def __call__(self, point: Point) -> None:
        if point.call not in ALLOCATING:
            return
        self._seen += 1
        if self._seen > self._first and self._left:
            self._left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def run_under(before: Before, folder: Path, book: Path) -> str:
    """ "done", or the class of the error that ended it."""
    with book.open("w", buffering=1) as file:
        run = SmallRun(folder, lambda fact: print(json.dumps(fact), file=file), "covered")
        try:
            with DiskShim(folder, before).installed():
                asyncio.run(run.to_the_end())
        except (ComponentError, ResourceError) as error:
            return type(error).__name__
    return "done"


def run_on_small_disk(free: int, folder: Path, book: Path) -> str:
    """The same on a real disk with so many bytes free, until the run tried in vain often enough."""
    ballast, tries = folder.parent / BALLAST, 0
    found = os.statvfs(folder)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(found.f_frsize, found.f_bavail * found.f_frsize - free))
    real = os.posix_fallocate

    def allocate(fd: int, offset: int, length: int) -> None:
        nonlocal tries
        try:
            real(fd, offset, length)
        except OSError:
            tries += 1
            if tries == TRIES:
                ballast.unlink()
            raise

    os.posix_fallocate = allocate
    try:
        became = run_under(lambda point: None, folder, book)
    finally:
        os.posix_fallocate = real
        ballast.unlink(missing_ok=True)
    return f"{became} after a pause" if tries >= TRIES else became


def positions(count: int, total: int, seed: int) -> list[int]:
    """`count` numbers below `total`, evenly, from a place by the seed; all of them if there are fewer."""
    if count >= total:
        return list(range(total))
    return [(seed + place * total // count) % total for place in range(count)]


def in_child(launch: Launch, run: Path, notes: Path) -> tuple[str, str]:
    """What became of a run in a process of its own, and what was wrong with it or with the run that goes on from it."""
    book, said = notes / "book", notes / "said"
    run.mkdir()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            said.write_text(launch(run, book))
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        return "failed", f"exit code {code}, with the error above"
    try:
        Book.read(book).check(run)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test looks for
        return said.read_text(), "".join(traceback.format_exception(error))
    return said.read_text(), ""


def count_points(folder: Path) -> list[Point]:
    folder.mkdir()
    shim = DiskShim(folder, lambda point: None)
    with shim.installed():
        asyncio.run(SmallRun(folder, lambda fact: None, "covered").to_the_end())
    return shim.points


def broken(number: int) -> Launch:
    def launch(run: Path, book: Path) -> str:
        disk = Broken(number)
        end = run_under(disk, run, book)
        # How calls share commits is a matter of timing: one run has a few more of them than another.
        return end if disk.hit else "not reached"

    return launch


def full(number: int) -> Launch:
    return lambda run, book: run_under(Full(number), run, book)


def tmpfs(free: int) -> Launch:
    return lambda run, book: run_on_small_disk(free, run, book)


def main(mode: str, seed: str, folder: str, count: str) -> None:
    streamrl.buffers.ledger.ledger._ALLOCATE_BYTES = 2**11
    streamrl.system.disk_space.LOOK_EVERY_S = 0.01
    points = count_points(Path(folder) / "counted")
    allocating = sum(point.call in ALLOCATING for point in points)
    size = sum(path.stat().st_blocks * 512 for path in (Path(folder) / "counted").rglob("*"))
    total = {"broken": len(points), "full": allocating, "tmpfs": size}[mode]
    launches: dict[str, Callable[[int], Launch]] = {"broken": broken, "full": full, "tmpfs": tmpfs}
    became: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as notes:
        for number in positions(int(count), total, int(seed)):
            run = Path(folder) / f"at-{number}"
            how, why = in_child(launches[mode](number), run, Path(notes))
            shutil.rmtree(run)
            became[how] += 1
            if why:
                failures.append({"at": number, "became": how, "why": why})
    print(json.dumps({"became": became, "of": total, "failures": failures}))


if __name__ == "__main__":
    main(*sys.argv[1:])
