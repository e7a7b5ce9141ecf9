"""Which frames of other nodes are here, which are on their way, and which must be fetched. Pure.

Guaranteed: a frame is fetched once, however many readers ask for it, as long as it is kept; frames that lie one behind
the other travel together, up to a bound; the copies together stay under the byte bound, but for what readers hold: a
reader holds the segments of what it asked for last, until it asks again. Whole segments go, the one that was asked for
longest ago first. Nothing here reads, writes or waits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from streamrl.types import FrameRef

CHUNK_BYTES: Final = 4 * 2**20
"""Of one fetch at most, if it holds more than one frame: a message that no store of messages is too small for."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Frames of one segment, by offset, without a gap between them."""

    path: str
    frames: tuple[FrameRef, ...]

    @property
    def offset(self) -> int:
        return self.frames[0].offset

    @property
    def length(self) -> int:
        return self.frames[-1].offset + self.frames[-1].length - self.offset


class Wanted(NamedTuple):
    """begin: what whoever asked must fetch. coming: what another one has begun, and what there is to wait for."""

    begin: list[Fetch]
    coming: list[Fetch]


@dataclass(slots=True)
class _Segment:
    """The copy of one segment. frames: those that are here. num_bytes: of them, and what was found at the start."""

    frames: set[FrameRef] = field(default_factory=set)
    coming: dict[FrameRef, Fetch] = field(default_factory=dict)
    num_bytes: int = 0
    adopted: bool = False


class FetchPlan:
    """The copies of one node.

    Example:
        wanted = plan.want("learner", lease.frames)
        for fetch in wanted.begin: ...; plan.arrived(fetch)     # or plan.failed(fetch)
        for path in plan.evict(): ...
    """

    def __init__(self, byte_bound: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._byte_bound = byte_bound
        self._chunk_bytes = chunk_bytes
        self._segments: dict[str, _Segment] = {}
        """In the order in which they were asked for, the newest last."""
        self._held: dict[str, set[str]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all copies."""
        return sum(segment.num_bytes for segment in self._segments.values())

    def adopt(self, path: str, num_bytes: int) -> None:
        """A copy that an earlier process left; which frames are in it is not known."""
        self._segments[path] = _Segment(num_bytes=num_bytes, adopted=True)

    def unknown(self, frames: Iterable[FrameRef]) -> list[FrameRef]:
        """Those that may be in adopted copies, and are not known to be."""
        adopted = {path for path, segment in self._segments.items() if segment.adopted}
        return [frame for frame in frames if frame.path in adopted and self._is_missing(frame)]

    def found(self, frame: FrameRef) -> None:
        """A frame is there, whole, in an adopted copy, unless that was evicted meanwhile. Its bytes are counted."""
        if frame.path in self._segments:
            self._segments[frame.path].frames.add(frame)

    def want(self, reader: str, frames: Sequence[FrameRef]) -> Wanted:
        """Take in what a reader needs now; it needs what it asked for before no more."""
        self._held[reader] = {frame.path for frame in frames}
        for path in sorted(self._held[reader]):
            self._segments[path] = self._segments.pop(path, _Segment())
        coming = {self._segments[frame.path].coming.get(frame): None for frame in frames}
        begin = self._split(self._missing(frames))
        for fetch in begin:
            self._segments[fetch.path].coming.update(dict.fromkeys(fetch.frames, fetch))
        return Wanted(begin, [fetch for fetch in coming if fetch is not None])

    def arrived(self, fetch: Fetch) -> None:
        """Its frames are here."""
        segment = self._segments[fetch.path]
        self._forget(segment, fetch)
        segment.frames.update(fetch.frames)
        segment.num_bytes += fetch.length

    def failed(self, fetch: Fetch) -> None:
        """Its frames are not here: whoever asks next begins anew."""
        self._forget(self._segments[fetch.path], fetch)

    def evict(self) -> list[str]:
        """Segments whose copies must go, so that the rest keeps within the bound. They are forgotten."""
        held = set().union(*self._held.values())
        excess, gone = self.num_bytes - self._byte_bound, []
        for path, segment in self._segments.items():
            if excess > 0 and path not in held and not segment.coming:
                excess -= segment.num_bytes
                gone.append(path)
        for path in gone:
            del self._segments[path]
        return gone

    def _missing(self, frames: Iterable[FrameRef]) -> list[FrameRef]:
        missing = {frame for frame in frames if self._is_missing(frame)}
        return sorted(missing, key=lambda frame: (frame.path, frame.offset))

    def _is_missing(self, frame: FrameRef) -> bool:
        segment = self._segments[frame.path]
        return frame not in segment.frames and frame not in segment.coming

    def _split(self, frames: Iterable[FrameRef]) -> list[Fetch]:
        """Sorted frames as fetches: a gap, or the bound, begins another one."""
        fetches = []
        for path, of_path in groupby(frames, key=lambda frame: frame.path):
            part: list[FrameRef] = []
            for frame in of_path:
                if part and not self._joins(part, frame):
                    fetches.append(Fetch(path, tuple(part)))
                    part = []
                part.append(frame)
            fetches.append(Fetch(path, tuple(part)))
        return fetches

    def _joins(self, part: list[FrameRef], frame: FrameRef) -> bool:
        end = part[-1].offset + part[-1].length
        return frame.offset == end and end + frame.length - part[0].offset <= self._chunk_bytes

    @staticmethod
    def _forget(segment: _Segment, fetch: Fetch) -> None:
        for frame in fetch.frames:
            segment.coming.pop(frame, None)
