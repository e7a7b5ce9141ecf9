"""A part of the test files at a time, so that what takes long is run in turns: `pytest --part 2/3`."""

import os
from collections.abc import Collection, Sequence
from pathlib import PurePath

import pytest

LEFT_OUT: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", help="k/n: every n-th test file from the k-th on, and those that TOUCHED names")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--part")
    # What failed in a part is run once more whichever part it would be alone.
    if not part or config.getoption("lf"):
        return
    file_of = {item: item.path.relative_to(config.rootpath).as_posix() for item in items}
    kept = files_of(part, sorted(set(file_of.values())), os.environ.get("TOUCHED", "").split())
    left_out = sorted(set(file_of.values()) - kept)
    config.hook.pytest_deselected(items=[item for item in items if file_of[item] not in kept])
    items[:] = [item for item in items if file_of[item] in kept]
    config.stash[LEFT_OUT] = left_out


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    left_out = config.stash.get(LEFT_OUT, [])
    return [f"left to another part, by name: {name}" for name in left_out]


def files_of(part: str, files: Sequence[str], touched: Collection[str] = ()) -> set[str]:
    """Every n-th of `files`, from the k-th on, for a part "k/n"; in any case those that were `touched`, and unit tests
    of a folder of which something was.

    Raises ValueError for what is no part.
    """
    number, slash, count = part.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ValueError(f'--part is "{part}"; give k/n, with k from 1 to n')
    names = sorted(files)
    return {*names[int(number) - 1 :: int(count)], *(name for name in names if _is_touched(name, touched))}


def _is_touched(name: str, touched: Collection[str]) -> bool:
    folder = PurePath(name).parent.as_posix()
    tested = folder.removeprefix("tests/unit/")
    return name in touched or (tested != folder and any(path.startswith(f"{tested}/") for path in touched))
