"""Writes the page, the README's figures and the pictures beside the page: `make benchmarks-page`."""

import shutil
from pathlib import Path

from results_page.page import benchmarks_page, readme_figures
from results_page.records import read_records

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
BY_HAND = RESULTS / "by_hand.md"
PAGE = ROOT / "docs/benchmarks.md"
README = ROOT / "README.md"
PICTURES = ROOT / "docs/images"
BEGIN, END = "<!-- figures, made by `make benchmarks-page` -->\n", "<!-- end of the figures -->"


def with_figures(readme: str, figures: str) -> str:
    """The README with these figures between its two marks. Raises ValueError when a mark is missing."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md lacks the mark {(END if begin else BEGIN).strip()!r} around its figures")
    return f"{before}{BEGIN}{figures}{END}{after}"


def pictures() -> list[Path]:
    """Those that belong to the records."""
    return sorted((RESULTS / "pictures").iterdir())


def main() -> None:
    """Write what has changed."""
    records = read_records(RESULTS)
    PAGE.write_text(benchmarks_page(records, BY_HAND.read_text()))
    README.write_text(with_figures(README.read_text(), readme_figures(records)))
    for picture in pictures():
        shutil.copy(picture, PICTURES)


if __name__ == "__main__":
    main()
