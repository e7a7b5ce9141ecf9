"""The quickstart as a person runs it: scores, wall time, and the memory of all its processes together.

Memory is PSS (a page that n processes share counts 1/n in each), summed over every process that the command started,
looked at twice a second. Arguments after `--` go to `streamrl up`, for example `-- --seed 1`. `--config` is another
file of configs/, as ppo-quickstart.toml, which is to come to the same score and writes under its own name.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Event, Thread

import psutil
from report import OUT, Report

CONFIGS = Path(__file__).parents[1] / "configs"
USUAL = "quickstart.toml"
STREAMRL = Path(sys.executable).with_name("streamrl")
LOOK_S = 0.5
GIB = 2**30


class MemoryWatch:
    """The largest sum of PSS of a process and all that it started, while the block runs.

    A child that was handed on to another parent stays known by its id and start time.
    """

    def __init__(self, pid: int) -> None:
        self._known: set[psutil.Process] = {psutil.Process(pid)}
        self._done = Event()
        self._thread = Thread(target=self._watch)
        self.peak = 0
        self.processes = 0

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            total = 0
            for process in list(self._known):
                try:
                    self._known.update(process.children(recursive=True))
                except psutil.Error:
                    self._known.discard(process)
            for process in self._known:
                total += _pss(process)
            if total > self.peak:
                self.peak, self.processes = total, len(self._known)


def _pss(process: psutil.Process) -> int:
    """Bytes; 0 for a process that has ended."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="the quickstart: scores, time, memory")
    parser.add_argument("arguments", nargs="*", help="for `streamrl up`, after --")
    parser.add_argument("--config", default=USUAL, help="a file of configs/")
    options = parser.parse_args()
    report = Report(Path(options.config).stem)
    with tempfile.TemporaryDirectory(prefix="bench-quickstart-") as folder:
        started = time.monotonic()
        command = subprocess.Popen([STREAMRL, "up", CONFIGS / options.config, *options.arguments], cwd=folder)
        with MemoryWatch(command.pid) as watch:
            code = command.wait()
        wall_s = time.monotonic() - started
        if code:
            print(f"the quickstart ended with exit code {code}", file=sys.stderr)
            return 1
        (path,) = Path(folder).glob("runs/*/summary.json")
        summary = json.loads(path.read_text())
        OUT.mkdir(exist_ok=True)
        shutil.copy(path.with_name("reward.png"), OUT / f"{Path(options.config).stem}.png")
    report.add("seed", summary["seed"], "")
    report.add("held-out score before", summary["eval_before"], "", at_most=0.5)
    report.add("held-out score after", summary["eval_after"], "", at_least=0.9)
    report.add("whole command", wall_s, "s", at_most=300 if options.config == USUAL else None)
    report.add("rollouts trained per second", summary["rollouts_per_s"], "1/s")
    report.add("PSS of all processes, at most", watch.peak / GIB, "GiB", at_most=6)
    report.add("processes at that moment", watch.processes, "")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
