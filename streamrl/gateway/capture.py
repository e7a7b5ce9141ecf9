"""What the answer to one request of a session comes to. Pure.

Guarantees: a request whose answer did not become whole leaves nothing in its session; of a choice that was made anew,
its first attempt leaves nothing.
"""

from streamrl.gateway.asked import Asked
from streamrl.gateway.choice import Delta, joined
from streamrl.gateway.sessions import Call, Sessions


class Capture:
    """One request of a session: takes what its choices come to, and hands it over when all of them are whole."""

    def __init__(self, sessions: Sessions, name: str, asked: Asked) -> None:
        self._sessions = sessions
        self._name = name
        self._asked = asked
        self._deltas: dict[int, list[Delta]] = {}

    def begin(self) -> None:
        """Raises Refusal where the session takes no call."""
        self._sessions.begin(self._name)

    def take(self, index: int, delta: Delta) -> None:
        """What is new of a choice. One that begins with its first token begins anew."""
        if delta.start == 0:
            self._deltas[index] = []
        self._deltas[index].append(delta)

    def whole(self) -> None:
        """Every choice has ended."""
        calls = []
        for index, deltas in sorted(self._deltas.items()):
            prompt = self._asked.prompts[index // self._asked.n].tolist()
            one = joined(deltas)
            calls.append(Call(prompt, one.token_ids, one.logprobs, one.spans, one.finish_reason))
        self._sessions.add(self._name, calls)

    def end(self) -> None:
        """Nothing more comes, whether it is whole or not."""
        self._sessions.end(self._name)
