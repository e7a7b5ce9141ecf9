"""`docs/benchmarks.md` as text: the highlights, every figure of every record, and the figures without a record."""

from collections.abc import Iterator, Mapping
from itertools import chain

from results_page.highlights import page_lines, readme_lines
from results_page.records import Figure, Record
from results_page.sections import SECTIONS, section_of

HEAD = """\
# Benchmarks

<!-- Made by `make benchmarks-page` from benchmarks/results: change the records, or benchmarks/results_page. -->

Each figure has a command that makes it again. A command prints a table, and writes its record to `benchmarks/out`; the
records behind this page are in `benchmarks/results`. Where something is wanted of a figure, the command ends with exit
code 1 when it is missed.

The figures are of two shared cores, but for those of a GPU; each record names its processor. Other machines differ, and
these differ by a factor of two from hour to hour: read the ratios. `load` is the machine's load average at the start
and at the end of a benchmark: other programs ran beside it where it is far above 2.
"""

MARKS: Mapping[bool | None, str] = {True: "yes", False: "**no**", None: ""}


def benchmarks_page(records: Mapping[str, Record], by_hand: str) -> str:
    """The whole page. by_hand: Markdown of the figures that have no record."""
    parts = [HEAD, _highlights(records), by_hand.strip() + "\n", *(_section(record) for record in _ordered(records))]
    return "\n".join(parts)


def readme_figures(records: Mapping[str, Record]) -> str:
    """The README's list, a line for each figure."""
    return "".join(f"* **{line.question}**: {line.answer} (`{line.command}`).\n" for line in readme_lines(records))


def written(value: float) -> str:
    """Four significant digits, thousands set apart; never an exponent for what a person can read.

    Example:
        >>> written(60249.79), written(0.7271), written(3.0)
        ('60,250', '0.7271', '3')
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _ordered(records: Mapping[str, Record]) -> list[Record]:
    """In the order of the sections, then what no section names."""
    names = dict.fromkeys(chain((name for name in SECTIONS if name in records), records))
    return [records[name] for name in names]


def _highlights(records: Mapping[str, Record]) -> str:
    rows = ((line.question, line.answer, f"`{line.command}`") for line in page_lines(records))
    return "## In short\n\n" + _table(("what", "figure", "by"), rows)


def _section(record: Record) -> str:
    section = section_of(record.name)
    before, after = record.load
    machine = f"{record.processor}, {record.cpus} processors, Python {record.python}"
    made = f"`{section.command}`: {machine}, load {before:.1f} to {after:.1f}."
    picture = f"![{section.picture[1]}](images/{section.picture[0]})" if section.picture else ""
    body = "\n\n".join(text for text in (section.about, made, picture) if text)
    figures = _table(("figure", "value", "wanted", "holds"), map(_row, record.figures))
    return f"## {section.title}\n\n{body}\n\n{figures}"


def _row(figure: Figure) -> tuple[str, str, str, str]:
    value = f"{written(figure.value)} {figure.unit}".rstrip()
    return figure.name, value, figure.wanted, MARKS[figure.holds]


def _table(head: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
