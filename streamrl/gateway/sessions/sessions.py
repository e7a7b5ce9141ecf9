"""Sessions: the calls that an agent made under one id, as one conversation (`streamrl.conversations`). Pure.

Guaranteed: what is held is bounded in bytes; a session that nobody used for `idle_s` is forgotten, and says so as long
as its id is among the newest `GONE_KEPT` that ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from streamrl.clock import Clock
from streamrl.conversations.conversation import Call, Conversation
from streamrl.conversations.memory import NOTHING, Memory
from streamrl.gateway.refusal import Refusal

GONE_KEPT: Final = 10_000
SESSION_BYTES: Final = 2048
"""Of an empty session, by which many of them are bounded too."""


class Ended(StrEnum):
    """How a session ended."""

    REWARDED = "rewarded"
    FORGOTTEN = "forgotten"


@dataclass(slots=True)
class _Held:
    used_at: float
    session: Conversation = field(default_factory=Conversation)
    running: int = 0
    ending: bool = False


class Sessions:
    """Those of one gateway. idle_s: see the module. byte_limit: of all of them.

    Example:
        sessions.begin("agent-7")
        sessions.add("agent-7", [call])
        sessions.end("agent-7")
        session = sessions.take("agent-7")      # and then `rewarded`, or `reopen`
    """

    def __init__(self, clock: Clock, idle_s: float, byte_limit: int) -> None:
        self._clock = clock
        self._idle_s = idle_s
        self._byte_limit = byte_limit
        self._held: dict[str, _Held] = {}
        """The one that was used longest ago in front."""
        self._gone: dict[str, Ended] = {}
        self.num_bytes = 0
        """An estimate of what they take."""

    def __len__(self) -> int:
        return len(self._held)

    def begin(self, name: str) -> None:
        """A call begins. Raises Refusal for a session that takes none any more, or where there is no room."""
        self._forget_idle()
        if (ended := self._gone.get(name)) is Ended.FORGOTTEN:
            raise self._forgotten(name)
        held = self._held.get(name)
        if ended is Ended.REWARDED or (held is not None and held.ending):
            what = f"session {name!a} has its reward: it takes no further calls; begin another one"
            raise Refusal(409, "session_ended", what)
        if self.num_bytes + SESSION_BYTES > self._byte_limit:
            what = f"{len(self._held)} sessions take {self.num_bytes} bytes; at most {self._byte_limit} may"
            raise Refusal(429, "too_many_sessions", f"{what} (gateway.session_bytes): reward some, or come back")
        if held is None:
            held = self._held[name] = _Held(self._clock.now())
            self.num_bytes += SESSION_BYTES
        held.running += 1
        self._used(name)

    def add(self, name: str, calls: Sequence[Call]) -> None:
        """Completions of a call that was begun, in the order of its choices."""
        session = self._held[name].session
        before = session.num_bytes
        for call in calls:
            session.add(call)
        self.num_bytes += session.num_bytes - before

    def memory(self, name: str) -> Memory:
        """Of a session, as it is now; nothing where it is not there."""
        held = self._held.get(name)
        return NOTHING if held is None else held.session.memory()

    def end(self, name: str) -> None:
        """A call that was begun is over, whether anything came of it or not."""
        self._held[name].running -= 1
        self._used(name)

    def take(self, name: str) -> Conversation:
        """The session, which takes no further calls. Raises Refusal for one that is not there, runs, or is empty."""
        self._forget_idle()
        if self._gone.get(name) is Ended.FORGOTTEN:
            raise self._forgotten(name)
        held = self._held.get(name)
        if held is None or not held.session.first_prompt:
            what = f"session {name!a} has no call that was answered, since this gateway was started"
            raise Refusal(404, "session_not_found", what)
        if held.running or held.ending:
            why = f"has {held.running} calls that run" if held.running else "is being rewarded by another request"
            raise Refusal(409, "session_busy", f"session {name!a} {why}; wait for the answer, then send this again")
        held.ending = True
        return held.session

    def rewarded(self, name: str) -> None:
        """The run has it. Nothing changes for one that is not here, or runs: that began behind the reward."""
        if name in self._held and not self._held[name].running:
            self._leaves(name, Ended.REWARDED)

    def reopen(self, name: str) -> None:
        """What was taken was not accepted."""
        self._held[name].ending = False
        self._used(name)

    def _used(self, name: str) -> None:
        held = self._held.pop(name)
        held.used_at = self._clock.now()
        self._held[name] = held

    def _forget_idle(self) -> None:
        since = self._clock.now() - self._idle_s
        for name, held in list(self._held.items()):
            if held.used_at > since:
                break
            if not held.running and not held.ending:
                self._leaves(name, Ended.FORGOTTEN)

    def _leaves(self, name: str, how: Ended) -> None:
        self.num_bytes -= SESSION_BYTES + self._held.pop(name).session.num_bytes
        self._gone[name] = how
        if len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]

    def _forgotten(self, name: str) -> Refusal:
        what = f"session {name!a} was not used for {self._idle_s:g} s (gateway.session_idle_s) and is forgotten"
        return Refusal(410, "session_forgotten", f"{what}; begin another one")
