"""The records in `benchmarks/results`: what a benchmark measured, on which machine, and what was wanted of it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SUFFIX = "-2cpu"
"""Of the name of a record of two cores; that of a GPU has the GPU's."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of a record. wanted: ">= 5", or "" where nothing is asked; then `holds` is None."""

    name: str
    value: float
    unit: str
    wanted: str
    holds: bool | None


@dataclass(frozen=True, slots=True)
class Record:
    """One file. processor, cpus, python: the machine. load: its load average at the start and at the end."""

    name: str
    processor: str
    cpus: int
    python: str
    load: tuple[float, float]
    figures: tuple[Figure, ...]

    def __getitem__(self, name: str) -> float:
        """The value of a figure. Raises KeyError that names the record and the figures that it has."""
        for figure in self.figures:
            if figure.name == name:
                return figure.value
        known = "; ".join(figure.name for figure in self.figures)
        raise KeyError(f"the record {self.name!r} has no figure {name!r}, only: {known}")

    def values(self, *, unit: str, wanted: str) -> list[float]:
        """Of all figures with this unit of which this is wanted."""
        return [figure.value for figure in self.figures if (figure.unit, figure.wanted) == (unit, wanted)]


def read_records(folder: Path) -> Mapping[str, Record]:
    """All records of a folder by name, in the order of their names."""
    return {record.name: record for record in _records(folder)}


def _records(folder: Path) -> Iterator[Record]:
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        machine, (before, after) = found["machine"], found["load"]
        yield Record(
            name=path.stem.removesuffix(SUFFIX),
            processor=machine["processor"],
            cpus=machine["cpus"],
            python=machine["python"],
            load=(before, after),
            figures=tuple(Figure(**row) for row in found["rows"]),
        )
