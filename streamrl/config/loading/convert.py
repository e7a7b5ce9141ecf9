"""A tree of values to a `Config`, with every type error in it, not only the first.

A value that cannot be used is reported and its default taken, so that the rest, and the rules between keys,
can still be checked in the same pass.
"""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from streamrl.config.problems import Problem
from streamrl.config.schema import fields
from streamrl.config.schema.run import Config
from streamrl.config.schema.table import Table
from streamrl.config.suggest import nearest_keys, nearest_value
from streamrl.config.toml_text import dotted, quoted

NONE = "none"  # TOML has no null: this word gives an optional key back its absence
_LARGEST = 2**63 - 1


def convert(tree: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """The configuration that `tree` describes, and what is wrong with it."""
    problems: list[Problem] = []
    config = _table(Config, "", tree, problems)
    return config, problems


def _table(table: type[Table], name: str, tree: Mapping[str, Any], problems: list[Problem]) -> Any:
    types = {field.name: field.type for field in msgspec.structs.fields(table)}
    values: dict[str, Any] = {}
    for key, value in tree.items():
        full = fields.join(name, dotted([key]))
        if key not in types:
            problems.append(_unknown_key(table, name, full))
        elif not fields.is_table(types[key]):
            _leaf(full, key, value, types[key], values, problems)
        elif isinstance(value, Mapping):
            values[key] = _table(types[key], full, value, problems)
        else:
            problems.append(Problem(key=full, what="not a table", given=quoted(value), allowed=f"[{full}]"))
    return table(**values)


def _leaf(full: str, key: str, value: object, annotation: Any, values: dict[str, Any], problems: list[Problem]) -> None:
    """Put `value` into `values`, or say what is wrong with it."""
    if value == NONE and fields.is_optional(annotation):
        values[key] = None
        return
    try:
        values[key] = _checked(msgspec.convert(value, annotation))
    except msgspec.ValidationError:
        problems.append(_wrong_value(full, value, annotation))


def _checked(value: Any) -> Any:
    """Two things that a range in the schema does not say: numbers are finite, and integers fit 64 bits."""
    if isinstance(value, float) and not math.isfinite(value):
        raise msgspec.ValidationError("not finite")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise msgspec.ValidationError("more than 64 bits")
    return value


def _unknown_key(table: type[Table], name: str, full: str) -> Problem:
    siblings = [fields.join(name, field) for field in table.__struct_fields__]
    everywhere = [other for other, _ in fields.tables() if other] + [leaf.name for leaf in fields.leaves()]
    suggestion = nearest_keys(full, siblings, everywhere)
    names = "" if suggestion else ", ".join(table.__struct_fields__)
    return Problem(key=full, what="unknown key", allowed=names, suggestion=suggestion)


def _wrong_value(full: str, value: object, annotation: Any) -> Problem:
    allowed = fields.allowed(annotation)
    names = fields.literals(annotation)
    near = nearest_value(value, names)
    what = "unknown name" if names and isinstance(value, str) else "not a value of this key"
    if each := fields.literals_of_each(annotation):
        unknown = [name for name in value if name not in each] if isinstance(value, list) else []
        what = f"unknown name: {', '.join(map(quoted, unknown))}" if unknown else what
        near = nearest_value(unknown[0], each) if unknown else ""
    if isinstance(value, float) and not math.isfinite(value):
        what = "not a finite number"
    return Problem(
        key=full,
        what=what,
        given=quoted(value),
        allowed=allowed,
        suggestion=quoted(near) if near else "",
    )
