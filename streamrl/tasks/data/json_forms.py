"""The rows in one JSON object, in the forms in which people keep them. Pure."""

from collections.abc import Mapping
from typing import Any

from streamrl.tasks.data.addresses import SPLITS


class SeveralTables(ValueError):
    """One object that holds the rows of several splits."""


def rows_of(value: Mapping[str, Any]) -> list[Any]:
    """`{"data": [row, ...], ...}`: the one list of rows. `{"id": row, ...}`: the rows. `{"prompt": [...], "answer":
    [...]}`: columns of equal length, row by row. Anything else is a row itself. Raises SeveralTables for
    `{"train": [row, ...], "test": [row, ...]}`."""
    splits = [key for key, one in value.items() if key in _SPLIT_NAMES and isinstance(one, list) and _are_rows(one)]
    if len(splits) > 1:
        raise SeveralTables(f"it holds the rows of {', '.join(splits)}; save each in a file of its own")
    values = list(value.values())
    if values and all(isinstance(one, dict) for one in values):
        return values
    lists = [one for one in values if isinstance(one, list)]
    if len(lists) == len(values) > 0 and len({len(one) for one in lists}) == 1 and not any(map(_is_chat, lists)):
        if len(lists) > 1 or not _are_rows(lists[0]):
            return [dict(zip(value, row, strict=True)) for row in zip(*lists, strict=True)]
        return lists[0]
    tables = [one for one in lists if _are_rows(one)]
    if len(tables) == 1 and not any(map(_is_chat, lists)):
        return tables[0]
    return [value]


_SPLIT_NAMES = frozenset(name for names in SPLITS.values() for name in names)


def _are_rows(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(one, dict) for one in values)


def _is_chat(values: list[Any]) -> bool:
    """Whether a list is the messages of one conversation: a column of a row, and no table."""
    return _are_rows(values) and all("role" in one or "from" in one for one in values)
