"""The page of figures and the README's figures are what the records say."""

from dataclasses import replace

import pytest
from results_page.__main__ import BY_HAND, PAGE, PICTURES, README, RESULTS, pictures, with_figures
from results_page.highlights import page_lines, readme_lines
from results_page.page import benchmarks_page, readme_figures, written
from results_page.records import Figure, Record, read_records
from results_page.sections import SECTIONS, section_of

AGAIN = "run `make benchmarks-page`"


def record(name: str, *figures: Figure) -> Record:
    return Record(name=name, processor="a CPU", cpus=2, python="3.11", load=(1.0, 2.0), figures=figures)


def figure(name: str, value: float = 1.0, *, holds: bool | None = None) -> Figure:
    return Figure(name=name, value=value, unit="s", wanted="", holds=holds)


def test_the_page_is_what_the_records_say() -> None:
    assert PAGE.read_text() == benchmarks_page(read_records(RESULTS), BY_HAND.read_text()), AGAIN


def test_the_figures_of_the_readme_are_what_the_records_say() -> None:
    readme = README.read_text()
    assert readme == with_figures(readme, readme_figures(read_records(RESULTS))), AGAIN


def test_the_pictures_beside_the_page_are_those_of_the_records() -> None:
    assert pictures()
    for picture in pictures():
        assert (PICTURES / picture.name).read_bytes() == picture.read_bytes(), AGAIN


def test_every_record_is_on_the_page_with_each_of_its_figures() -> None:
    page = PAGE.read_text()
    for name, one in read_records(RESULTS).items():
        section = page.split(f"\n## {section_of(name).title}\n")[1].split("\n## ")[0]
        assert section.count("\n|") == len(one.figures) + 2
        assert f"`{section_of(name).command}`" in section


def test_the_readme_has_six_figures_and_each_has_a_number() -> None:
    lines = list(readme_lines(read_records(RESULTS)))
    assert len(lines) == 6
    assert all(any(letter.isdigit() for letter in line.answer) for line in lines)


def test_a_value_of_a_record_is_in_the_line_that_names_it() -> None:
    records = dict(read_records(RESULTS))
    name = "ratio, median of rounds"
    changed = tuple(replace(one, value=7.25) if one.name == name else one for one in records["e2e"].figures)
    records["e2e"] = replace(records["e2e"], figures=changed)
    assert any(line.answer.startswith("7.2x") for line in page_lines(records))


def test_a_record_without_a_section_is_on_the_page_all_the_same() -> None:
    assert "novel" not in SECTIONS
    records = {**read_records(RESULTS), "novel": record("novel", figure("how long", 1234.5, holds=False))}
    section = benchmarks_page(records, "").split("\n## Novel\n")[1]
    assert "`make bench-novel`: a CPU, 2 processors, Python 3.11, load 1.0 to 2.0." in section
    assert "| how long | 1,234 s |  | **no** |" in section


def test_a_figure_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(KeyError, match="record 'small' has no figure 'nothing', only: first; second"):
        record("small", figure("first"), figure("second"))["nothing"]


def test_a_readme_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the mark"):
        with_figures("# streamrl\n", "")


@pytest.mark.parametrize(
    ("value", "text"),
    [(60249.79, "60,250"), (0.72715, "0.7271"), (3.0, "3"), (0, "0"), (-1234.0, "-1,234"), (1.19e-07, "1.19e-07")],
)
def test_a_value_has_four_digits(value: float, text: str) -> None:
    assert written(value) == text
