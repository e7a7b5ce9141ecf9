"""What a table of another system's keys is made of, and what becomes of a setting. Pure.

A table says of each key of the other system which key of ours it is, that it is part of a conversion of units, or why
it is left out. Nothing is left out without a word: who converts sees each name, its line and the reason.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from streamrl.config.toml_text import quoted

NO_SUCH_KEY = "streamrl knows no key of this name; see docs/configuration.md for what there is"
COMPUTED = "its value is computed, and nothing of the file is run; write it into the configuration by hand"


class Unread(msgspec.Struct, frozen=True):
    """A value that is no literal. text: as it stands in the file."""

    text: str


class Setting(msgspec.Struct, frozen=True):
    """One key of the other system with its value. line: from 1; 0 where a reader knows none."""

    name: str
    value: Any
    line: int = 0
    file: str = ""

    @property
    def place(self) -> str:
        """Name and line, for a comment."""
        return f"{self.name} ({self.file}:{self.line})" if self.line else self.name


class To(msgspec.Struct, frozen=True):
    """The same as our key `ours`. values: ours for each of theirs, where they differ; any other value is left out, for
    the reason `otherwise`."""

    ours: str
    values: Mapping[Any, Any] | None = None
    otherwise: str = ""


class Units(msgspec.Struct, frozen=True):
    """Part of a conversion that takes several keys together."""


class Left(msgspec.Struct, frozen=True):
    """Has no equal. reason: why. unless: values that ask for nothing, which are not told."""

    reason: str
    unless: tuple[Any, ...] = (None, False, "", 0)


Entry = To | Units | Left
Table = Mapping[str, Entry]
"""By the key's name; a name that ends with `*` stands for all that begin so."""


class Written(msgspec.Struct, frozen=True):
    """A key of ours with its value. origin: what it follows from, in words."""

    key: str
    value: Any
    origin: str


class LeftOut(msgspec.Struct, frozen=True):
    """A setting that has no part in the configuration. reason: why, with the way out where there is one."""

    name: str
    line: int
    file: str
    value: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else ""
        return f"{where}{self.name} = {self.value}"


class Findings:
    """What a conversion comes to, as it goes on: keys of ours in the order of their conversion, what is left out, and
    notes for whoever reads the configuration."""

    def __init__(self) -> None:
        self.written: dict[str, Written] = {}
        self.left: list[LeftOut] = []
        self.notes: list[str] = []

    def write(self, key: str, value: Any, origin: str) -> None:
        self.written[key] = Written(key, value, origin)

    def leave(self, setting: Setting, reason: str) -> None:
        text = setting.value.text if isinstance(setting.value, Unread) else _shown(setting.value)
        found = LeftOut(setting.name, setting.line, setting.file, text, reason)
        if found not in self.left:
            self.left.append(found)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def tree(self) -> dict[str, Any]:
        """The keys of ours as nested tables."""
        tree: dict[str, Any] = {}
        for key, written in self.written.items():
            *tables, name = key.split(".")
            table = tree
            for part in tables:
                table = table.setdefault(part, {})
            table[name] = written.value
        return tree


class Source:
    """The settings of one file, over the defaults of its system.

    Example:
        source = Source([Setting("data.train_batch_size", 64, 3)], {"actor_rollout_ref.rollout.n": 1}, "verl")
        source.number("data.train_batch_size")      # 64
        source.origin("data.train_batch_size")      # "data.train_batch_size (run.sh:3)"
    """

    def __init__(self, settings: Sequence[Setting], defaults: Mapping[str, Any], system: str) -> None:
        self._settings = {setting.name: setting for setting in settings}
        self._defaults = defaults
        self._system = system

    def __iter__(self) -> Any:
        return iter(self._settings.values())

    def has(self, name: str) -> bool:
        """Whether the file itself says it, as a literal."""
        setting = self._settings.get(name)
        return setting is not None and not isinstance(setting.value, Unread)

    def setting(self, name: str) -> Setting:
        """As the file says it, else as the system has it by default."""
        if self.has(name):
            return self._settings[name]
        return Setting(name, self._defaults.get(name))

    def value(self, name: str) -> Any:
        return self.setting(name).value

    def number(self, name: str) -> float | None:
        """Its value, None where that is no number."""
        value = self.value(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, name: str) -> int:
        """Its value as a whole number of at least 1; 1 where it is none."""
        value = self.number(name)
        return max(1, int(value)) if value is not None else 1

    def first(self, *names: str) -> str:
        """The first of these names that the file says; the last of them when it says none."""
        return next((name for name in names if self.has(name)), names[-1])

    def origin(self, *names: str) -> str:
        """Where values come from, in words."""
        said = [self._settings[name].place for name in names if self.has(name)]
        return ", ".join(said) or f"{self._system}'s default of {names[0]}"


def apply(table: Table, source: Source, found: Findings) -> None:
    """Write what a table says by itself, and leave out what it says has no equal."""
    for setting in source:
        entry = _entry(table, setting.name)
        if isinstance(setting.value, Unread):
            found.leave(setting, COMPUTED)
        elif entry is None:
            found.leave(setting, NO_SUCH_KEY)
        elif isinstance(entry, Left):
            if not any(setting.value is one or setting.value == one for one in entry.unless) and setting.value != []:
                found.leave(setting, entry.reason)
        elif isinstance(entry, To):
            _one_to_one(entry, setting, source, found)


def defaults_of(table: Table, source: Source, found: Findings, names: Sequence[str]) -> None:
    """Write what the other system has by default and we have otherwise, where the file does not say it."""
    for name in names:
        entry = table[name]
        assert isinstance(entry, To)
        if not source.has(name):
            _one_to_one(entry, source.setting(name), source, found)


def _one_to_one(entry: To, setting: Setting, source: Source, found: Findings) -> None:
    if setting.value is None:
        return
    value = setting.value
    if entry.values is not None:
        if isinstance(value, dict | list) or value not in entry.values:
            found.leave(setting, entry.otherwise)
            return
        value = entry.values[value]
        if value is None:
            return
    found.write(entry.ours, value, source.origin(setting.name))


def _entry(table: Table, name: str) -> Entry | None:
    if name in table:
        return table[name]
    wild = [pattern for pattern in table if pattern.endswith("*") and name.startswith(pattern[:-1])]
    return table[max(wild, key=len)] if wild else None


def _shown(value: Any) -> str:
    return "null" if value is None else quoted(value)
