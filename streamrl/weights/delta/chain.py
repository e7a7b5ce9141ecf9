"""The way from the version that somebody has to the one that is wanted, with the fewest bytes.

Guarantees: a delta follows the version right before it only, of the same incarnation; so an incarnation that is not
the one at hand begins with an anchor, a version in full. Pure: it knows sizes, and no bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from streamrl.types import Version

Kind = Literal["anchor", "delta"]


@dataclass(frozen=True, slots=True)
class ChainStep:
    """Take `version` in full (an anchor), or apply its delta to the version before it. num_bytes is what moves."""

    kind: Kind
    version: Version
    num_bytes: int


def version_before(version: Version) -> Version:
    """The version that a delta of `version` applies to."""
    return Version(version.incarnation, version.step - 1)


def plan_chain(
    have: Version | None, wanted: Version, deltas: Mapping[Version, int], anchors: Mapping[Version, int]
) -> list[ChainStep] | None:
    """The steps that make `wanted` out of `have` (None: nothing is there) and move the fewest bytes.

    deltas, anchors: bytes (>= 0) of each version that there is, as a delta and in full. Returns no step when `wanted`
    is there already, and None when there is no way. Of two ways of equal bytes it is the one with fewer steps.
    """
    best: list[ChainStep] | None = None
    behind: list[ChainStep] = []
    moved, least, at = 0, 0, wanted
    # Backwards: each version has one delta at most, so the ways differ only in where they begin.
    while at != have:
        if at in anchors and (best is None or moved + anchors[at] < least):
            best, least = [ChainStep("anchor", at, anchors[at]), *reversed(behind)], moved + anchors[at]
        if at not in deltas:
            return best
        behind.append(ChainStep("delta", at, deltas[at]))
        moved, at = moved + deltas[at], version_before(at)
    return list(reversed(behind)) if best is None or moved < least else best
