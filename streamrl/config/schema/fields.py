"""The schema as a list: every key with its type, its default, and what its type allows in words."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect

from streamrl.config.schema.run import Config
from streamrl.config.schema.table import Name, Table
from streamrl.config.toml_text import toml_value


class Leaf(msgspec.Struct, frozen=True):
    """One key of the schema: its dotted name, its annotation, and its default."""

    name: str
    type: Any
    default: Any


def is_table(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Table)


def tables(table: type[Table] = Config, name: str = "") -> Iterator[tuple[str, type[Table]]]:
    """Every table with its dotted name ("" for the top), parents first, in schema order."""
    yield name, table
    for field in msgspec.structs.fields(table):
        if is_table(field.type):
            yield from tables(field.type, join(name, field.name))


def leaves(table: type[Table] = Config, name: str = "") -> Iterator[Leaf]:
    """Every leaf below `table`, in schema order."""
    for field in msgspec.structs.fields(table):
        dotted = join(name, field.name)
        if is_table(field.type):
            yield from leaves(field.type, dotted)
        else:
            yield Leaf(dotted, field.type, field.default)


def join(table: str, key: str) -> str:
    return f"{table}.{key}" if table else key


def literals(annotation: object) -> list[str]:
    """The names that a key chooses from; empty for any other type."""
    return [str(name) for name in get_args(annotation)] if get_origin(annotation) is Literal else []


def literals_of_each(annotation: object) -> list[str]:
    """The names that a key takes some of; empty for any other type."""
    return literals(get_args(annotation)[0]) if get_origin(annotation) is tuple else []


def is_optional(annotation: object) -> bool:
    return any(isinstance(info, inspect.NoneType) for info in _alternatives(annotation))


def takes_text(annotation: object) -> bool:
    """Whether a bare word on the command line is a value of this type, and nothing else is."""
    return all(isinstance(info, inspect.StrType | inspect.LiteralType) for info in _but_none(annotation))


def takes_bool(annotation: object) -> bool:
    return any(isinstance(info, inspect.BoolType) for info in _but_none(annotation))


def allowed(annotation: object) -> str:
    """What a value of this type may be, in words."""
    if annotation is Name:
        return "1 to 64 letters, digits, '.', '_' and '-', beginning with a letter or digit"
    if names := literals(annotation):
        return ", ".join(toml_value(name) for name in names)
    words = ", or ".join(map(_allowed, _but_none(annotation)))
    return words + (', or "none"' if is_optional(annotation) else "")


def _alternatives(annotation: object) -> tuple[inspect.Type, ...]:
    """What a value may be, each by itself."""
    info = inspect.type_info(annotation)
    return tuple(info.types) if isinstance(info, inspect.UnionType) else (info,)


def _but_none(annotation: object) -> list[inspect.Type]:
    return [info for info in _alternatives(annotation) if not isinstance(info, inspect.NoneType)]


def _allowed(info: inspect.Type) -> str:
    if isinstance(info, inspect.IntType):
        return "an integer" + _range(info)
    if isinstance(info, inspect.FloatType):
        return "a number" + _range(info)
    if isinstance(info, inspect.TupleType):
        return f"a list of {len(info.item_types)}, each {_allowed(info.item_types[0])}"
    if isinstance(info, inspect.VarTupleType):
        return f"a list, each {_allowed(info.item_type)}"
    if isinstance(info, inspect.LiteralType):
        return "one of " + ", ".join(toml_value(name) for name in info.values)
    if isinstance(info, inspect.AnyType):
        return "anything"
    if isinstance(info, inspect.DictType):
        return f"a table, each value {_allowed(info.value_type)}"
    return "true or false" if isinstance(info, inspect.BoolType) else "text"


def _range(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {_number(info.ge)} to {_number(info.le)}"
    bounds = [(">", info.gt), (">=", info.ge), ("<", info.lt), ("<=", info.le)]
    parts = [f"{sign} {_number(bound)}" for sign, bound in bounds if bound is not None]
    return " " + " and ".join(parts) if parts else ""


def _number(bound: float) -> str:
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"
