"""Where values come from: the files and the command line, merged, later wins.

Tables merge key by key, everything else (lists too) is replaced whole. Each problem gets the file and the
line of the key that it names.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from streamrl.config.problems import Problem


class Layer(msgspec.Struct, frozen=True):
    """One source: its name for messages, its values, and the line of each dotted key (0: no line)."""

    file: str
    tree: dict[str, Any]
    lines: dict[str, int]


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` on top; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


class Sources:
    """The layers of one configuration, in the order in which they were given."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._files = [layer.file for layer in layers]

    def merged(self) -> dict[str, Any]:
        tree: dict[str, Any] = {}
        for layer in self._layers:
            tree = merge(tree, layer.tree)
        return tree

    def locate(self, problem: Problem) -> Problem:
        """The problem with its file and line: of its key, else of a key that it involves, else of the nearest
        table around it, else of the first file. A problem that has its file keeps it."""
        if problem.file:
            return problem
        file, line = self._origin([problem.key, *problem.involves, *_parents(problem.key)])
        return msgspec.structs.replace(problem, file=file, line=line)

    def in_order(self, problems: Iterable[Problem]) -> list[Problem]:
        """Sorted as the user reads: by source, then by line."""
        return sorted(problems, key=lambda problem: (self._rank(problem.file), problem.line))

    def _rank(self, file: str) -> int:
        return self._files.index(file) if file in self._files else len(self._files)

    def _origin(self, keys: Iterable[str]) -> tuple[str, int]:
        for key in keys:
            for layer in reversed(self._layers):
                if key in layer.lines:
                    return layer.file, layer.lines[key]
        return (self._files[0] if self._files else ""), 0


def _parents(key: str) -> Iterator[str]:
    while "." in key:
        key = key.rpartition(".")[0]
        yield key
