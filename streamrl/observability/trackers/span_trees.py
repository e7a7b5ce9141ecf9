"""Which span lies in which, from the order in which a track's spans end. Pure.

A span is recorded when it ends, so the ones inside it come first, and nobody knows whether one around them follows. So
a span waits for one around it, for `HOLD_NS` of its track's time; then it stands alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from streamrl.observability.timeline import Span

HOLD_NS = 60 * 10**9


@dataclass(slots=True)
class Tree:
    """A span and those inside it, in the order in which they ended."""

    span: Span
    inside: list["Tree"] = field(default_factory=list)

    @property
    def end_ns(self) -> int:
        return self.span.start_ns + self.span.duration_ns


class TrackTrees:
    """The spans of one track.

    Example:
        trees = TrackTrees()
        trees.add(Span("pack", 10, 5))
        trees.add(Span("step", 0, 20))
        [tree.span.name for tree in trees.take_all()]   # ["step"], and "pack" inside it
    """

    def __init__(self) -> None:
        self._held: list[Tree] = []

    def add(self, span: Span) -> None:
        first = len(self._held)
        while first and self._held[first - 1].span.start_ns >= span.start_ns:
            first -= 1
        self._held[first:] = [Tree(span, self._held[first:])]

    def take_old(self) -> list[Tree]:
        """Those that have waited long enough; they are gone from here."""
        newest = self._held[-1].end_ns if self._held else 0
        count = sum(tree.end_ns <= newest - HOLD_NS for tree in self._held)
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def take_all(self) -> list[Tree]:
        """All; they are gone from here."""
        taken, self._held = self._held, []
        return taken


def walk(tree: Tree, parent: Tree | None = None) -> Iterator[tuple[Tree, Tree | None]]:
    """Each span of a tree with the one around it, outer ones first."""
    yield tree, parent
    for inner in tree.inside:
        yield from walk(inner, tree)
