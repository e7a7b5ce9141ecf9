"""Results of finished runs in a file that outlives their folders, so that hours of runs may be made in parts.

A line for each run: its name, a digest of all that it was told, the machine, and the result. Guarantees that a result
of other settings is never taken for one of these.
"""

import os
from pathlib import Path

import msgspec
import xxhash
from report import machine, turn_ns

from learning_study.curves import Result
from learning_study.runs import TASK_FOLDER, TASKS, Run, arguments

CONFIGURATION = "configs/quickstart.toml"


class Kept(msgspec.Struct, frozen=True):
    """One line. told: see `digest_of`. load, turn_ns: of the machine behind the run, as `report` has them."""

    name: str
    told: str
    machine: dict[str, str | int]
    load: float
    turn_ns: float
    result: Result


def digest_of(run: Run, steps: int, here: Path) -> str:
    """Of the keys and the files that a run is told, whichever folder it is made in."""
    nowhere = Path("runs")
    module = here / TASK_FOLDER / "reasoning_tasks.py"
    files = [here.parent / CONFIGURATION, *(here / file for file in TASKS[run.task]), module]
    keys = [word.replace(str(here.parent), "") for word in arguments(run, steps, nowhere, here)]
    said = "\0".join([*keys, *(file.read_text() for file in files)])
    return xxhash.xxh3_64_hexdigest(said.encode())


class KeptResults:
    """Those in `path`, and what is added to it. here: the folder of the configurations."""

    def __init__(self, path: Path, steps: int, here: Path) -> None:
        """Raises msgspec's DecodeError for a line that is none of ours."""
        self._path, self._steps, self._here = path, steps, here
        lines = path.read_bytes().splitlines() if path.is_file() else []
        every = [msgspec.json.decode(line, type=Kept) for line in lines]
        self._found = {(one.name, one.told): one.result for one in every}

    def find(self, run: Run) -> Result | None:
        """What this run came to, where it was made before as it would be made now."""
        return self._found.get((run.name, digest_of(run, self._steps, self._here)))

    def add(self, run: Run, result: Result) -> None:
        """Keep what a run came to that was just made."""
        told = digest_of(run, self._steps, self._here)
        kept = Kept(run.name, told, machine(), os.getloadavg()[0], turn_ns(), result)
        self._found[run.name, told] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(kept) + b"\n")
