"""Figures on their way from a part to the benchmark that started it: a line of JSON each."""

import json
from collections.abc import Iterable
from typing import Any

MARK = "figure: "


def tell(name: str, value: float, unit: str, *, at_least: float | None = None, at_most: float | None = None) -> None:
    """Print one figure, with what is wanted of it."""
    told = {"name": name, "value": value, "unit": unit, "at_least": at_least, "at_most": at_most}
    print(MARK + json.dumps(told), flush=True)


def read(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The figures among the lines that a part printed, as arguments of `Report.add`."""
    return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
