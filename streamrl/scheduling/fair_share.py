"""Which stream of prompts has the next group: by priority, then by weight. Pure.

Start-time fair queueing (Goyal, Vin and Cheng 1996): each group that a stream gets costs it 1 / weight of virtual time,
and of the streams that have a prompt the one that is furthest behind comes next. A stream without a prompt saves
nothing up for later: virtual time goes on without it.
"""

from collections.abc import Collection, Mapping
from typing import Final

from streamrl.config.schema.streams import Share

_USUAL: Final = Share()


class StreamShares:
    """See the module. shares: of the streams that are known; another one has a `Share()`.

    Example:
        >>> shares = StreamShares({"agents": Share(weight=3.0)})
        >>> [shares.give(["train", "agents"]) for _ in range(4)]
        ['agents', 'train', 'agents', 'agents']
    """

    def __init__(self, shares: Mapping[str, Share]) -> None:
        self._shares = dict(shares)
        self._now = 0.0
        self._due: dict[str, float] = {}
        """Virtual time at which each stream's next group begins, at the earliest."""

    def give(self, waiting: Collection[str]) -> str | None:
        """The stream among `waiting` that has the next group, and is charged for it; None if none of them may have
        any."""
        entitled = [name for name in waiting if self._share(name).weight > 0]
        chosen = min(entitled, key=self._place, default=None)
        if chosen is not None:
            self.charge(chosen)
        return chosen

    def entitled(self, stream: str) -> bool:
        """Whether it may have groups at all."""
        return self._share(stream).weight > 0

    def charge(self, stream: str) -> None:
        """This stream has got a group."""
        begins = max(self._now, self._due.get(stream, 0.0))
        self._now = begins
        weight = self._share(stream).weight
        # One that should have none now had some before the settings were changed.
        self._due[stream] = begins + (1 / weight if weight else 0.0)

    def _place(self, stream: str) -> tuple[int, float, float, str]:
        share = self._share(stream)
        return -share.priority, max(self._now, self._due.get(stream, 0.0)), 1 / share.weight, stream

    def _share(self, stream: str) -> Share:
        return self._shares.get(stream, _USUAL)
