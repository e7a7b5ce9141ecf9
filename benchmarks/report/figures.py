"""What every benchmark does with its figures: print a table, keep a record, say whether the wanted ones hold.

The record is `benchmarks/out/NAME.json`: {machine, load, turn_ns, rows: [{name, value, unit, wanted, holds}]}. `load`
is the machine's load average over a minute and `turn_ns` what a turn of an empty loop takes, each at the start and at
the end: figures of a busy machine show as such, also when others keep it busy who cannot be seen from here.
"""

import json
import os
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OUT = Path(__file__).parents[1] / "out"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `wanted` is ">= 5" or "<= 60", or "" where nothing is asked; then `holds` is None."""

    name: str
    value: float
    unit: str
    wanted: str
    holds: bool | None


class Report:
    """Collects rows; `finish` writes and prints them.

    Example:
        report = Report("engine")
        report.add("ratio", 5.4, "x", at_least=5)
        sys.exit(report.finish())
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows: list[Row] = []
        self._load_before = os.getloadavg()[0]
        self._turn_before = turn_ns()

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        wanted, holds = "", None
        if at_least is not None:
            wanted, holds = f">= {at_least:g}", value >= at_least
        if at_most is not None:
            wanted, holds = f"<= {at_most:g}", value <= at_most
        self._rows.append(Row(name, value, unit, wanted, holds))

    def finish(self) -> int:
        """Write the record, print the table. Returns the exit code: 1 when a wanted figure is missed."""
        record = self.write()
        console = Console()
        console.print(self._table())
        load, turn = (" -> ".join(f"{value:.3g}" for value in record[key]) for key in ("load", "turn_ns"))
        console.print(f"load {load}, a turn of an empty loop {turn} ns, written to {self._path}")
        return int(any(row.holds is False for row in self._rows))

    def write(self) -> dict[str, Any]:
        """The record of what there is so far, written and returned."""
        record = {
            "machine": machine(),
            "load": [self._load_before, os.getloadavg()[0]],
            "turn_ns": [self._turn_before, turn_ns()],
            "rows": [asdict(row) for row in self._rows],
        }
        OUT.mkdir(exist_ok=True)
        self._path.write_text(json.dumps(record, indent=2) + "\n")
        return record

    @property
    def _path(self) -> Path:
        return OUT / f"{self._name}.json"

    def _table(self) -> Table:
        table = Table("figure", "value", "unit", "wanted", "holds", title=self._name)
        marks = {True: "yes", False: "NO", None: ""}
        for row in self._rows:
            table.add_row(row.name, f"{row.value:.4g}", row.unit, row.wanted, marks[row.holds])
        return table


def turn_ns(turns: int = 10**6, rounds: int = 5) -> float:
    """Nanoseconds that Python takes for a turn of an empty loop, the median of some rounds: how quick this machine is
    just now."""
    times = []
    for _ in range(rounds):
        started = time.monotonic()
        for _ in range(turns):
            pass
        times.append(time.monotonic() - started)
    return 1e9 * statistics.median(times) / turns


def machine() -> dict[str, str | int]:
    """What the figures were taken on: processor, logical CPUs, Python."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {"processor": model, "cpus": os.cpu_count() or 0, "python": platform.python_version()}
