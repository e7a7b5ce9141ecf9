"""A part of the test files at a time, so that what takes long is run in turns: `pytest --part 2/3`."""

from collections.abc import Collection, Sequence
from pathlib import PurePath


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
