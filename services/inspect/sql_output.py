"""The answer of a query as text for a terminal, as CSV, or as JSON.

Guarantees: JSON and CSV are whole and for programs (NaN is null, a list in CSV is JSON); text is for eyes, with long
values cut.
"""

import csv
import io
import json
from collections.abc import Callable
from typing import Any

from streamrl.services.inspect.sql import Answer, query_run
from streamrl.services.run.control.server import finite
from streamrl.services.run.folder import RunFolder

_WIDTH = 48
"""Characters of a value in text."""


def as_json(answer: Answer) -> str:
    """A list of objects, a row each."""
    rows = [dict(zip(answer.names, row, strict=True)) for row in answer.rows]
    return json.dumps(finite(rows), default=_plain)


def as_csv(answer: Answer) -> str:
    """A line of names, then a line a row; null is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(answer.names)
    writer.writerows([_cell(value) for value in row] for row in answer.rows)
    return out.getvalue().removesuffix("\n")


def as_text(answer: Answer) -> str:
    """Columns, numbers to the right, and how many rows there are."""
    cells = [[_cut(_shown(value)) for value in row] for row in answer.rows]
    widths = [max(map(len, column)) for column in zip(answer.names, *cells, strict=True)]
    to_right = [
        any(map(_is_number, column)) and all(value is None or _is_number(value) for value in column)
        for column in (list(zip(*answer.rows, strict=True)) or [()] * len(answer.names))
    ]

    def line(values: list[str]) -> str:
        columns = zip(values, widths, to_right, strict=True)
        return "  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in columns).rstrip()

    rows = [line(answer.names), line(["-" * width for width in widths]), *map(line, cells)]
    return "\n".join([*rows, f"({len(cells)} {'row' if len(cells) == 1 else 'rows'})"])


FORMS: dict[str, Callable[[Answer], str]] = {"text": as_text, "json": as_json, "csv": as_csv}


def show(run: RunFolder, query: str, form: str, tell: Callable[[str], None]) -> None:
    """Print the answer of a query in one of FORMS. tell, errors: `streamrl.services.inspect.sql.query_run`."""
    print(FORMS[form](query_run(run, query, tell)))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(_cell(value))


def _cell(value: Any) -> Any:
    """A value of CSV: null and NaN are empty, what is no scalar is JSON."""
    if isinstance(value, list | tuple | dict):
        return json.dumps(finite(value), default=_plain)
    return _plain(value) if isinstance(value, bytes) else finite(value)


def _cut(text: str) -> str:
    # A value must not move the cursor, nor break the line.
    plain = "".join(character if character.isprintable() else "?" for character in text)
    return plain if len(plain) <= _WIDTH else plain[: _WIDTH - 3] + "..."


def _plain(value: Any) -> str:
    """What JSON has no word for: times, decimals, ids, bytes."""
    return value.hex() if isinstance(value, bytes) else str(value)
