"""Ends a small run at every call that changes its folder, and looks whether what is left goes on as if nothing was.

    python crash_points.py states SEED FOLDER     every state that a crash or a power cut can leave, from one run
    python crash_points.py deaths SEED FOLDER N   real deaths: processes that end at every N-th call
    python crash_points.py twice SEED FOLDER N    a crash at every N-th call, and a power cut while it is recovered from

The state after a call is the one before the next, so each call is crashed before and after. Of each moment there are
three states: all that was written (`kill -9`), only what was synced (a power cut), and what was synced with a part of
the rest, by chance. Prints one JSON object: the number of points and of states, and the failures.
"""

import asyncio
import hashlib
import json
import os
import random
import shutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support.faults.disk_model import DiskModel
from support.faults.disk_shim import DiskShim, Point
from support.runs.small_run import Book, SmallRun

import streamrl.buffers.ledger.ledger

KILLED = "killed"
CUT = "power cut"
PARTLY = "power cut, part of the rest kept"
ALL = (KILLED, CUT, PARTLY)
RECOVERY_POINTS = 40
"""Calls of a recovery that a power cut follows: the opening and the first things that it acknowledges."""


class State(NamedTuple):
    """What lay in the folder at a moment, and how much of the book was written then."""

    where: str
    folder: Path
    num_facts: int


class Recorder:
    """A run under the shim, that leaves a copy of its folder for each moment and way to end."""

    def __init__(self, run: Path, states: Path, seed: int, model: DiskModel | None = None) -> None:
        self.facts: list[dict[str, Any]] = []
        self.states: list[State] = []
        self.models: list[DiskModel] = []
        self._run = run
        self._folder = states
        self._chance = random.Random(seed)
        self._shim = DiskShim(run, self._look, model)
        self.wanted: tuple[str, ...] = ALL
        self.most = sys.maxsize
        self.keep_models = False

    def record(self) -> int:
        """Run to the end; the number of points."""
        self._folder.mkdir()
        with self._shim.installed():
            asyncio.run(SmallRun(self._run, self.facts.append, "covered").to_the_end())
            self._leave("the end")
        past = self._shim.model.differences(self._run)
        assert not past, f"written past the shim: {past}"
        return len(self._shim.points)

    def _look(self, point: Point) -> None:
        if point.number < self.most:
            self._leave(f"before {point.number} {point.call} {point.path}")

    def _leave(self, where: str) -> None:
        if self.keep_models:
            self.models.append(self._shim.model.copy())
        for way in self.wanted:
            target = self._folder / str(len(self.states))
            if way == KILLED:
                shutil.copytree(self._run, target)
            else:
                self._shim.model.after_power_cut(target, self._chance if way == PARTLY else None)
            self.states.append(State(f"{way}, {where}", target, len(self.facts)))


def states(seed: int, folder: Path) -> dict[str, Any]:
    """Every state of one run, recovered from and run to the end."""
    recorder = Recorder(new(folder / "run"), folder / "states", seed)
    points = recorder.record()
    failures = list(broken(recorder.states, recorder.facts))
    return {"points": points, "states": len(recorder.states), "failures": failures}


def twice(seed: int, folder: Path, every: int) -> dict[str, Any]:
    """A kill, a recovery of what it left, and a power cut during that: what the first one left unsynced is unsynced."""
    first = Recorder(new(folder / "run"), folder / "states", seed)
    first.wanted, first.keep_models = (KILLED,), True
    first.record()
    counted, failures = 0, []
    for number in range(seed % every, len(first.states), every):
        killed = first.states[number]
        second = Recorder(killed.folder, folder / f"again-{number}", seed, first.models[number])
        second.wanted, second.most = (CUT, PARTLY), RECOVERY_POINTS
        second.record()
        before = first.facts[: killed.num_facts]
        failures += broken(second.states, second.facts, before, f"{killed.where}; then ")
        counted += len(second.states)
        shutil.rmtree(folder / f"again-{number}")
    return {"points": len(first.states), "states": counted, "failures": failures}


def deaths(seed: int, folder: Path, every: int) -> dict[str, Any]:
    """Processes that end at a call, without a word to anybody."""
    points, counted, failures = sys.maxsize, 0, []
    while (number := seed % every + counted * every) < points:
        run, book = new(folder / f"run-{counted}"), folder / f"book-{counted}"
        ended = _die_at(number, run, book)
        if ended == 0:
            points = number
            break
        assert ended == 9, f"the run itself failed before call {number}: exit code {ended}"
        failures += [why for why in [_failure(Book.read(book), run)] if why]
        shutil.rmtree(run)
        counted += 1
    return {"points": min(points, counted * every), "states": counted, "failures": failures}


def _die_at(number: int, run: Path, book: Path) -> int:
    """Exit code of a process that runs until that call: 9 when it came to it, 0 when the run ended before."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with book.open("w", buffering=1) as file:

        def die(point: Point) -> None:
            if point.number == number:
                os._exit(9)

        code = 1
        try:
            with DiskShim(run, die).installed():
                asyncio.run(SmallRun(run, lambda fact: print(json.dumps(fact), file=file), "covered").to_the_end())
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)


def broken(
    states: list[State], facts: list[dict[str, Any]], before: list[dict[str, Any]] | None = None, how: str = ""
) -> Iterator[str]:
    """What goes wrong after each state. States that are equal, with equal books, are looked at once."""
    seen = set()
    for state in states:
        book = Book([*(before or []), *facts[: state.num_facts]])
        key = (_digest(state.folder), len(book.facts))
        if key not in seen:
            seen.add(key)
            why = _failure(book, state.folder)
            if why:
                yield f"{how}{state.where}: {why}"
        shutil.rmtree(state.folder)


def _failure(book: Book, folder: Path) -> str:
    try:
        book.check(folder)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test looks for
        return "".join(traceback.format_exception_only(error)) + traceback.format_tb(error.__traceback__)[-1]
    return ""


def _digest(folder: Path) -> str:
    digest = hashlib.blake2b()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + (b"" if path.is_dir() else path.read_bytes()))
    return digest.hexdigest()


def new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def main(mode: str, seed: str, folder: str, *rest: str) -> None:
    # A file that grows now and then instead of never: growing has crash points of its own.
    streamrl.buffers.ledger.ledger._ALLOCATE_BYTES = 2**11
    modes = {"states": states, "twice": twice, "deaths": deaths}
    print(json.dumps(modes[mode](int(seed), Path(folder), *map(int, rest))))


if __name__ == "__main__":
    main(*sys.argv[1:])
