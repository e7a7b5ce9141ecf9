"""A configuration as TOML, and the keys in which two differ."""

from typing import Any

import msgspec

from streamrl.config.loading.convert import NONE
from streamrl.config.schema import fields
from streamrl.config.schema.run import Config
from streamrl.config.schema.table import Table
from streamrl.config.toml_text import toml_value


def dump(config: Config) -> str:
    """Every key of the resolved configuration as TOML; an absent value is left out, or said to be none where the key
    has another by default. `load` of it gives `config`."""
    blocks = [_block(name, value_of(config, name)) for name, _ in fields.tables()]
    return "\n".join(block for block in blocks if block)


def diff(first: Config, second: Config) -> list[str]:
    """The dotted keys whose values differ, in schema order."""
    names = [leaf.name for leaf in fields.leaves()]
    return [name for name in names if value_of(first, name) != value_of(second, name)]


def value_of(config: Config, name: str) -> Any:
    """The value of a dotted key, or the struct of a table; "" is the whole configuration."""
    value: Any = config
    for part in name.split(".") if name else ():
        value = getattr(value, part)
    return value


def said(value: Any, default: Any) -> Any:
    """What a file says of a key that has `value`: None says nothing."""
    return NONE if value is None and default is not None else value


def _block(name: str, table: Table) -> str:
    own = [field for field in msgspec.structs.fields(table) if not fields.is_table(field.type)]
    values = {field.name: said(getattr(table, field.name), field.default) for field in own}
    lines = [f"{key} = {toml_value(value)}" for key, value in values.items() if value is not None]
    header = [f"[{name}]"] if name and lines else []
    return "".join(f"{line}\n" for line in header + lines)
