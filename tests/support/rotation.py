"""A part of the test files at a time, so that what takes long is run in turns: `pytest --part 2/3`."""

from collections.abc import Collection, Sequence


def files_of(part: str, files: Sequence[str], touched: Collection[str] = ()) -> set[str]:
    """Every n-th of `files`, from the k-th on, for a part "k/n"; those that were `touched` in any case.

    Raises ValueError for what is no part.
    """
    number, slash, count = part.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ValueError(f'--part is "{part}"; give k/n, with k from 1 to n')
    names = sorted(files)
    return {*names[int(number) - 1 :: int(count)], *(name for name in names if name in touched)}
