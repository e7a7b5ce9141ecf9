"""A test that fails is run once more, alone; what passes then is named, and only so many are let pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import once_more

STEADY = "def test_steady():\n    pass\n"
UNSTEADY = """
from pathlib import Path

def test_unsteady_{0}():
    print("the number is {0}")
    seen = Path("seen-{0}")
    first = not seen.exists()
    seen.touch()
    assert not first
"""
BROKEN = "def test_broken():\n    raise ValueError\n"


def run(folder: Path, *tests: str, arguments: tuple[str, ...] = ()) -> tuple[int, str, list[str]]:
    """Exit code, output, and names noted."""
    (folder / "test_it.py").write_text("\n".join(tests))
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {Path(once_more.__file__).parents[1]}\n")
    noted = folder / "noted"
    # What a worker of pytest tells its children is not for a run of its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, once_more.__file__, *arguments, "test_it.py"],
        cwd=folder,
        # No other plugin than that of its workers: to load them takes longer than all else.
        env={**environment, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist", "UNSTEADY": str(noted)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, noted.read_text().split() if noted.exists() else []


def test_a_run_without_a_failure_is_pytests(tmp_path: Path) -> None:
    code, output, noted = run(tmp_path, STEADY)
    assert (code, noted) == (0, [])
    assert "once more" not in output


@pytest.mark.parametrize("arguments", [(), ("-n", "2", "--dist", "loadfile")])
def test_what_passes_alone_is_named_with_both_outputs(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    code, output, noted = run(tmp_path, STEADY, UNSTEADY.format(1), arguments=arguments)
    assert (code, noted) == (0, ["test_it.py::test_unsteady_1"])
    assert "unsteady here, by name: test_it.py::test_unsteady_1" in output
    assert output.count("\nthe number is 1\n") == 2
    assert "1 failed, 1 passed" in output
    assert "1 passed, 1 deselected" in output


def test_what_failed_in_a_part_is_run_once_more_whichever_part_it_is_alone(tmp_path: Path) -> None:
    hooks = "pytest_addoption, pytest_collection_modifyitems, pytest_report_collectionfinish"
    (tmp_path / "conftest.py").write_text(f"from support.rotation import {hooks}\n")
    (tmp_path / "test_before.py").write_text(STEADY)
    code, output, noted = run(tmp_path, UNSTEADY.format(1), arguments=("--part", "2/2", "test_before.py"))
    assert (code, noted) == (0, ["test_it.py::test_unsteady_1"])
    assert "left to another part, by name: test_before.py" in output
    assert output.count("\nthe number is 1\n") == 2


def test_what_fails_twice_is_red_whatever_else_passes(tmp_path: Path) -> None:
    code, output, noted = run(tmp_path, UNSTEADY.format(1), BROKEN)
    assert (code, noted) == (1, [])
    assert "unsteady here" not in output


def test_more_than_three_of_all_parts_are_red(tmp_path: Path) -> None:
    (tmp_path / "noted").write_text("other::a\nother::b\n")
    code, _, noted = run(tmp_path, UNSTEADY.format(1))
    assert (code, len(noted)) == (0, 3)
    code, output, noted = run(tmp_path, UNSTEADY.format(2))
    assert (code, len(noted)) == (1, 4)
    assert "4 tests of this run are unsteady" in output


@pytest.mark.parametrize("twice", [False, True])
def test_where_a_file_was_not_collected_all_of_it_is_run_once_more(tmp_path: Path, twice: bool) -> None:
    (tmp_path / "test_other.py").write_text(BROKEN if twice else STEADY)
    unsteady = UNSTEADY.format(1) + "\ntest_unsteady_1()\n"
    code, output, noted = run(tmp_path, unsteady, arguments=("-n", "2", "--dist", "loadfile", "test_other.py"))
    assert "once more, all of it" in output
    assert "2 passed" in output or twice
    assert code == int(twice)
    assert ("test_it.py" in noted) is not twice


def test_many_failures_are_not_run_once_more(tmp_path: Path) -> None:
    code, output, noted = run(tmp_path, *(UNSTEADY.format(number) for number in range(4)))
    assert (code, noted) == (1, [])
    assert "none is run once more" in output


def test_an_end_that_is_no_tests_is_kept(tmp_path: Path) -> None:
    assert run(tmp_path, "import nothing_of_this_name\n")[0] == 2
    assert run(tmp_path, "")[0] == 5


def test_failures_of_another_run_are_not_repeated(tmp_path: Path) -> None:
    assert run(tmp_path, BROKEN)[0] == 1
    code, output, _ = run(tmp_path, STEADY, UNSTEADY.format(1))
    assert code == 0
    assert "once more, alone: test_it.py::test_unsteady_1\n" in output
