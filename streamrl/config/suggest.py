"""The nearest valid key or value for a wrong one."""

import difflib
from collections.abc import Iterable, Sequence

_MOST = 2  # more suggestions than this are no help


def nearest_keys(key: str, siblings: Sequence[str], everywhere: Iterable[str]) -> str:
    """Valid keys that `key` was probably meant to be: spelled alike in the same table, or named alike in
    another one.

    All are dotted. The answer reads `a.b or c.d`, or "" when nothing is near.
    """
    table, _, name = key.rpartition(".")
    spelled = difflib.get_close_matches(_plain(name), [_plain(_last(known)) for known in siblings], n=1)
    alike = [known for known in siblings if _plain(_last(known)) in spelled]
    moved = [known for known in everywhere if _plain(_last(known)) == _plain(name)]
    moved.sort(key=lambda known: not known.startswith(f"{table}."))
    # A name that exists to the letter is likelier than one that is only spelled alike.
    found = list(dict.fromkeys(moved + alike)) or _spelled_alike(key, everywhere)
    return " or ".join(found[:_MOST])


def nearest_value(value: object, known: Sequence[str]) -> str:
    """The known name that is spelled most like `value`, or ""."""
    if not isinstance(value, str):
        return ""
    by_plain = {_plain(name): name for name in known}
    return next((by_plain[match] for match in difflib.get_close_matches(_plain(value), by_plain, n=1)), "")


def _spelled_alike(key: str, everywhere: Iterable[str]) -> list[str]:
    # Of equal names the one that is nearest to the top, which is the plainer thing.
    deepest_first = sorted(everywhere, key=lambda known: -known.count("."))
    by_name = {_plain(_last(known)): known for known in deepest_first}
    return [by_name[name] for name in difflib.get_close_matches(_plain(_last(key)), by_name, n=1, cutoff=0.75)]


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _plain(name: str) -> str:
    return name.strip('"').lower().replace("-", "_")
