"""A conversation: the calls that were made in it, as branches of exact ids. Pure.

    call 1: p1 -> c1        call 2: p1 c1 e -> c2        call 3: p1 x -> c3
    branch 0: p1 [c1] e [c2]                             branch 1: p1 x [c3]         (what is in brackets is trained)

A call whose prompt begins with all ids of a branch is that branch's next turn, and the ids between are of the
environment. Any other begins a branch of its own, all of whose prompt is prompt: ids are never rewritten, and no
sampled token is trained twice. So does a call that an older version answered than the branch's last turn: within a row
versions never go back. Tokens that were chosen for the model, as a grammar does, are trained as little as those of the
environment.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from streamrl.conversations.branches import Branch, Own, Span, Turn, own_turns
from streamrl.conversations.memory import Memory, MessageKey, SoFar, message_key
from streamrl.conversations.tool_calls import ParsedMessage
from streamrl.types import RouteArray

TOKEN_BYTES: Final = 80
"""Of one token: an integer, a number and three references to them, as Python holds them."""


class Call(NamedTuple):
    """One completion. prompt_ids: of its request. spans: `start` counted from the first sampled token. finish_reason:
    "stop" or "length". text: of prompt and completion, as `SoFar` has it; None where the prompt came as ids. answer:
    where tool calls or thoughts of its message were read, that message and the text which was sampled. routes: of
    prompt and completion, as a `GenerationResult` has them. own: of each sampled token."""

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span]
    finish_reason: str
    text: str | None = None
    answer: tuple[ParsedMessage, str] | None = None
    routes: RouteArray | None = None
    own: Own = None


@dataclass(slots=True)
class _Branch:
    """turns, own: of each of its calls."""

    so_far: SoFar
    turns: list[Turn]
    own: list[Own]
    finish_reason: str

    def continued_by(self, call: Call) -> bool:
        older, ids = call.spans[0][1:] < self.turns[-1].spans[-1][1:], self.so_far.ids
        return not older and list(call.prompt_ids[: len(ids)]) == ids


class Conversation:
    """The branches of one conversation, in the order in which they began.

    Example:
        conversation = Conversation()
        conversation.add(Call([1, 2], [3], [-0.1], [(0, 0, 4)], "stop"))
        conversation.add(Call([1, 2, 3, 9], [5], [-0.2], [(0, 0, 4)], "stop"))
        conversation.branches()          # one, of two turns
    """

    def __init__(self) -> None:
        self._branches: list[_Branch] = []
        self._answers: dict[MessageKey, str] = {}
        self.num_tokens = 0
        self._text_bytes = 0
        self._route_bytes = 0

    @property
    def first_prompt(self) -> Sequence[int]:
        """Ids of the prompt that it began with; empty before the first call."""
        return self._branches[0].turns[0].prompt_ids if self._branches else ()

    @property
    def num_bytes(self) -> int:
        """An estimate of what it takes."""
        return TOKEN_BYTES * self.num_tokens + self._text_bytes + self._route_bytes

    def add(self, call: Call) -> None:
        """Take a call; one that sampled nothing leaves no trace."""
        if not call.token_ids:
            return
        continued = [one for one in self._branches if one.continued_by(call)]
        branch = max(continued, key=lambda one: len(one.so_far.ids), default=None)
        if branch is None:
            branch = _Branch(SoFar([], None), [], [], "")
            self._branches.append(branch)
        between = list(call.prompt_ids[len(branch.so_far.ids) :])
        branch.turns.append(Turn(between, list(call.token_ids), list(call.logprobs), list(call.spans), call.routes))
        branch.own.append(call.own)
        self._text_bytes += sys.getsizeof(call.text) - sys.getsizeof(branch.so_far.text)
        ids, opening = [*branch.so_far.ids, *between, *call.token_ids], len(branch.turns[0].prompt_ids)
        branch.so_far = SoFar(ids, call.text, opening, branch.so_far.ends_within(call.text))
        branch.finish_reason = call.finish_reason
        self.num_tokens += len(between) + len(call.token_ids)
        self._route_bytes += 0 if call.routes is None else call.routes.nbytes
        if call.answer is not None:
            said, sampled = call.answer
            self._text_bytes += sys.getsizeof(said.content) + 2 * sys.getsizeof(sampled)
            self._answers[message_key(said)] = sampled

    def memory(self) -> Memory:
        """As it is now."""
        return Memory([one.so_far for one in self._branches], dict(self._answers))

    @property
    def num_turns(self) -> int:
        """Calls that sampled something."""
        return sum(len(one.turns) for one in self._branches)

    def branches(self) -> list[Branch]:
        """Those of which something is trained."""
        turns = (own_turns(zip(one.turns, one.own, strict=True)) for one in self._branches)
        return [Branch(some, one.finish_reason) for some, one in zip(turns, self._branches, strict=True) if some]
