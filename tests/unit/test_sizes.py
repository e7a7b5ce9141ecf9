"""What one sees at once stays small: files of a folder, lines of a file, lines of a function (CONTRIBUTING.md)."""

import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest
from support.repository import ROOT

MOST_FILES, MOST_LINES, MOST_LINES_OF_FUNCTION = 16, 400, 60
PRODUCT = ("streamrl", "buffers", "services", "benchmarks", "deploy", "docs")


@pytest.fixture(scope="module")
def tracked() -> list[PurePath]:
    """What git keeps, or is about to."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"not a checkout: {done.stderr.strip()}")
    return [PurePath(line) for line in done.stdout.splitlines() if (ROOT / line).exists()]


def too_full(files: list[PurePath]) -> dict[str, int]:
    """Files of each folder that has too many of them; folders in it are not counted."""
    counts = Counter(str(file.parent) for file in files)
    return {folder: count for folder, count in counts.items() if count > MOST_FILES}


def functions(source: str) -> Iterator[tuple[str, int]]:
    """Name and lines of each function."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_folder_has_too_many_files(tracked: list[PurePath]) -> None:
    assert too_full(tracked) == {}


def test_no_file_is_too_long(tracked: list[PurePath]) -> None:
    found = {str(file): lines_of(file) for file in python(tracked)}
    assert {name: count for name, count in found.items() if count > MOST_LINES} == {}


def test_no_function_is_too_long(tracked: list[PurePath]) -> None:
    found = {
        (str(file), name): lines for file in python(tracked) for name, lines in functions((ROOT / file).read_text())
    }
    assert {name: lines for name, lines in found.items() if lines > MOST_LINES_OF_FUNCTION} == {}


def test_files_and_lines_are_counted() -> None:
    files = [PurePath(f"a/{number}.py") for number in range(MOST_FILES + 1)]
    assert too_full(files[1:]) == {}
    assert too_full([*files, PurePath("a/b/one.py")]) == {"a": MOST_FILES + 1}
    assert list(functions("class A:\n    async def f(self):\n        return (\n            1\n        )\n")) == [
        ("f", 4)
    ]


def python(files: list[PurePath]) -> list[Path]:
    """Those of the product; a link is a file of its own folder alone."""
    found = [Path(file) for file in files if file.parts[0] in PRODUCT and file.suffix == ".py"]
    return [file for file in found if not (ROOT / file).is_symlink()]


def lines_of(file: Path) -> int:
    return len((ROOT / file).read_text().splitlines())
