"""What staleness costs in learning: held-out score against steps and wall clock, for each bound and each correction.

    make bench-learning                            two tasks, three seeds, thirteen settings: hours
    make bench-learning ARGS=--quick               one task and seed, staleness 0 and 4, fewer steps: for a look
    make bench-learning ARGS='--staleness 0 4'     a part of it
    make bench-learning ARGS='--keep FILE'         with results in FILE, and in no other place

Real runs, one after the other. Those of one task and seed begin from one warm model and take equally many rollouts.
What a run came to is kept in benchmarks/out/learning.jsonl, and its folder in benchmarks/out/learning: what is finished
is not made again, and what was cut off goes on. Wanted: at
staleness 4, with the default correction, a score at most 0.02 below that of staleness 0, for each task. Writes
learning.json, learning.txt (the table) and learning.svg (the curves) in benchmarks/out.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from learning_study.curves import Result, read_result
from learning_study.kept import KeptResults
from learning_study.picture import draw
from learning_study.runs import TASK_FOLDER, TASKS, Run, arguments, plan
from learning_study.table import Line, add_rows, as_table, table_lines
from report import OUT, Report
from rich.console import Console

HERE = Path(__file__).parent
STREAMRL = Path(sys.executable).with_name("streamrl")
QUICK_STEPS = 100


def main() -> int:
    options = parse(sys.argv[1:])
    folder = OUT / options.name
    folder.mkdir(parents=True, exist_ok=True)
    report = Report(options.name)
    runs = list(plan(options.tasks, options.seeds, options.staleness))
    kept = KeptResults(options.keep or folder.with_suffix(".jsonl"), options.steps, HERE)
    lines = table_lines(list(made(runs, kept, partial(made_in, folder, options.steps))))
    add_rows(report, lines)
    code = report.finish()
    show(lines, folder)
    return code


def parse(given: Sequence[str]) -> argparse.Namespace:
    """The options. A quick look has a name and folders of its own: its runs are no part of the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed of one task, staleness 0 and 4, fewer steps")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="all of them unless given")
    parser.add_argument("--seeds", type=int, help="how many, from 0; 3 unless given")
    parser.add_argument("--staleness", nargs="+", type=int, help="bounds; 0 1 2 4 8 unless given")
    parser.add_argument("--steps", type=int, help="of each run; 300 unless given")
    parser.add_argument("--keep", type=Path, help="the file of results; benchmarks/out/NAME.jsonl unless given")
    options = parser.parse_args(given)
    usual = {"tasks": list(TASKS), "seeds": 3, "staleness": [0, 1, 2, 4, 8], "steps": 300}
    if options.quick:
        usual = {"tasks": ["arithmetic"], "seeds": 1, "staleness": [0, 4], "steps": QUICK_STEPS}
    for key, value in usual.items():
        if getattr(options, key) is None:
            setattr(options, key, value)
    options.name = "learning-quick" if options.quick else "learning"
    return options


def made(runs: Sequence[Run], kept: KeptResults, result_of: Callable[[Run], Result | None]) -> Iterator[Result]:
    """The results of all runs but the warm-ups, in order. Made, by `result_of`, are those that are not kept, and the
    warm-ups that these begin from."""
    missing = {run for run in runs if run.setting is not None and kept.find(run) is None}
    wanted = missing | {run.warm for run in missing}
    for number, run in enumerate(runs, start=1):
        print(f"{number}/{len(runs)} {run.name}", flush=True)
        if run in wanted and (result := result_of(run)) is not None:
            kept.add(run, result)
        if (result := kept.find(run)) is not None:
            print(f"    score {result.score:.3f}, staleness {result.staleness:.2f}", flush=True)
            yield result


def made_in(folder: Path, steps: int, run: Run) -> Result | None:
    """Make a run; what it came to, None of a warm-up."""
    make(run, steps, folder)
    return None if run.setting is None else read_result(run, folder / run.name)


def make(run: Run, steps: int, folder: Path) -> None:
    """Start the run, or go on with it. `up` itself leaves a finished one alone, and refuses one of other settings."""
    command = [str(STREAMRL), "up", *arguments(run, steps, folder, HERE)]
    log = folder / f"{run.name}.log"
    paths = os.pathsep.join([str(HERE / TASK_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])])
    with log.open("w") as file:
        done = subprocess.run(command, stdout=file, stderr=file, env={**os.environ, "PYTHONPATH": paths})
    if done.returncode:
        raise SystemExit(
            f"{run.name} ended with exit code {done.returncode}:\n{log.read_text()}"
            f"To make it anew remove {folder / run.name}; the runs that are finished stay."
        )


def show(lines: Sequence[Line], folder: Path) -> None:
    """The table on the terminal and as text, and the picture, beside the record."""
    table = as_table(lines)
    Console().print(table)
    with folder.with_suffix(".txt").open("w") as file:
        Console(file=file, width=120).print(table)
    draw(lines, folder.with_suffix(".svg"))


if __name__ == "__main__":
    sys.exit(main())
