"""Parts of the test files are all of them together, each once but for those that a change touched."""

import pytest
from support.rotation import files_of

FILES = [f"tests/faults/test_{letter}.py" for letter in "gfedcba"]


def test_the_parts_together_are_all_files_and_each_is_in_one() -> None:
    parts = [files_of(f"{number}/3", FILES) for number in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(FILES)
    assert {len(part) for part in parts} == {2, 3}


def test_the_order_in_which_files_are_found_does_not_matter() -> None:
    assert files_of("2/3", FILES) == files_of("2/3", FILES[::-1])


def test_what_a_change_touched_is_in_every_part() -> None:
    assert all(FILES[0] in files_of(f"{number}/3", FILES, {FILES[0], "README.md"}) for number in (1, 2, 3))


@pytest.mark.parametrize(
    ("touched", "runs"),
    [
        ("streamrl/learner/optim/schedule.py", True),
        ("streamrl/learner/optim/deeper/one.py", True),
        ("streamrl/learner/optimizer.py", False),
        ("streamrl/learner/fsdp.py", False),
        ("README.md", False),
    ],
)
def test_what_a_change_touched_brings_the_unit_tests_of_its_folder(touched: str, runs: bool) -> None:
    name = "tests/unit/streamrl/learner/optim/test_a.py"
    files = ["tests/unit/streamrl/learner/a/test_a.py", name]
    assert (name in files_of("1/2", files, {touched})) is runs


@pytest.mark.parametrize("part", ["", "3", "0/3", "4/3", "a/3", "1/"])
def test_what_is_no_part_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="give k/n"):
        files_of(part, FILES)
