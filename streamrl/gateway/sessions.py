"""Sessions: the calls that an agent made under one id, as the branches of one trajectory. Pure.

    call 1: p1 -> c1        call 2: p1 c1 e -> c2        call 3: p1 x -> c3
    branch 0: p1 [c1] e [c2]                             branch 1: p1 x [c3]         (what is in brackets is trained)

A call whose prompt begins with all ids of a branch is that branch's next turn, and the ids between are of the
environment. Any other begins a branch of its own, all of whose prompt is prompt: ids are never rewritten, and no
sampled token is trained twice. So does a call that an older version answered than the branch's last turn: within a row
versions never go back.

Guaranteed: what is held is bounded in bytes; a session that nobody used for `idle_s` is forgotten, and says so as long
as its id is among the newest `GONE_KEPT` that ended.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from streamrl.clock import Clock
from streamrl.gateway.memory import NOTHING, Memory, SaidKey, SoFar, said_key
from streamrl.gateway.refusal import Refusal
from streamrl.gateway.tool_calls import Said
from streamrl.gateway.trajectory import Branch, Span, Turn

GONE_KEPT: Final = 10_000
SESSION_BYTES: Final = 2048
"""Of an empty session, by which many of them are bounded too."""
TOKEN_BYTES: Final = 80
"""Of one token: an integer, a number and three references to them, as Python holds them."""


class Call(NamedTuple):
    """One completion. prompt_ids: of its request. spans: `start` counted from the first sampled token. finish_reason:
    "stop" or "length". text: of prompt and completion, as `SoFar` has it; None where the prompt came as ids. answer:
    where its message had tool calls, that message and the text which was sampled."""

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span]
    finish_reason: str
    text: str | None = None
    answer: tuple[Said, str] | None = None


class Ended(StrEnum):
    """How a session ended."""

    REWARDED = "rewarded"
    FORGOTTEN = "forgotten"


@dataclass(slots=True)
class _Branch:
    so_far: SoFar
    turns: list[Turn]
    finish_reason: str

    def continued_by(self, call: Call) -> bool:
        older, ids = call.spans[0][1:] < self.turns[-1].spans[-1][1:], self.so_far.ids
        return not older and list(call.prompt_ids[: len(ids)]) == ids


class Session:
    """The branches of one session, in the order in which they began.

    Example:
        session = Session()
        session.add(Call([1, 2], [3], [-0.1], [(0, 0, 4)], "stop"))
        session.add(Call([1, 2, 3, 9], [5], [-0.2], [(0, 0, 4)], "stop"))
        session.branches()          # one, of two turns
    """

    def __init__(self) -> None:
        self._branches: list[_Branch] = []
        self._answers: dict[SaidKey, str] = {}
        self.num_tokens = 0
        self._text_bytes = 0

    @property
    def first_prompt(self) -> Sequence[int]:
        """Ids of the prompt that it began with; empty before the first call."""
        return self._branches[0].turns[0].prompt_ids if self._branches else ()

    @property
    def num_bytes(self) -> int:
        """An estimate of what it takes."""
        return TOKEN_BYTES * self.num_tokens + self._text_bytes

    def add(self, call: Call) -> None:
        """Take a call; one that sampled nothing leaves no trace."""
        if not call.token_ids:
            return
        continued = [one for one in self._branches if one.continued_by(call)]
        branch = max(continued, key=lambda one: len(one.so_far.ids), default=None)
        if branch is None:
            branch = _Branch(SoFar([], None), [], "")
            self._branches.append(branch)
        between = list(call.prompt_ids[len(branch.so_far.ids) :])
        branch.turns.append(Turn(between, list(call.token_ids), list(call.logprobs), list(call.spans)))
        self._text_bytes += sys.getsizeof(call.text) - sys.getsizeof(branch.so_far.text)
        branch.so_far = SoFar([*branch.so_far.ids, *between, *call.token_ids], call.text)
        branch.finish_reason = call.finish_reason
        self.num_tokens += len(between) + len(call.token_ids)
        if call.answer is not None:
            said, sampled = call.answer
            self._text_bytes += sys.getsizeof(said.content) + 2 * sys.getsizeof(sampled)
            self._answers[said_key(said)] = sampled

    def memory(self) -> Memory:
        """As it is now."""
        return Memory([one.so_far for one in self._branches], dict(self._answers))

    def branches(self) -> list[Branch]:
        return [Branch(list(one.turns), one.finish_reason) for one in self._branches]


@dataclass(slots=True)
class _Held:
    used_at: float
    session: Session = field(default_factory=Session)
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

    def take(self, name: str) -> Session:
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
