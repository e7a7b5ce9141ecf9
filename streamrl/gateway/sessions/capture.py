"""What the answer to one request of a session comes to. Pure.

Guarantees: a request whose answer did not become whole leaves nothing in its session; of a choice that was made anew,
its first attempt leaves nothing; of a choice that followed a grammar, no token counts as the model's that the grammar
chose.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from streamrl.conversations.branches import Own
from streamrl.conversations.conversation import Call
from streamrl.conversations.tool_calls import MessageReader, ParsedMessage
from streamrl.gateway.openai.choice import Delta, joined
from streamrl.gateway.openai.requests import ParsedRequest
from streamrl.gateway.sessions.sessions import Sessions
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import FinishReason, FloatArray, IntArray

LEAST_LEFT: Final = 0.9
"""Of the model's own probability: where a grammar left less of it, the token is the grammar's choice. Not 1, since a
later version may score what an earlier one sampled, and servers compute in bfloat16."""


class Capture:
    """One request of a session: takes what its choices come to, and hands it over when all of them are whole. reader:
    of the tool calls in its answer, where they are read."""

    def __init__(
        self,
        sessions: Sessions,
        name: str,
        asked: ParsedRequest,
        tokenizer: TextTokenizer,
        reader: MessageReader | None = None,
    ) -> None:
        self._sessions = sessions
        self._name = name
        self._asked = asked
        self._tokenizer = tokenizer
        self._reader = reader
        self._deltas: dict[int, list[Delta]] = {}
        self._scores: dict[int, FloatArray] = {}

    @property
    def wants_scores(self) -> bool:
        """Whether all its choices have ended, and must have scores before they are whole."""
        ended = [some for some in self._deltas.values() if some[-1].finish_reason]
        return self._asked.grammar is not None and len(ended) == len(self._asked.prompts) * self._asked.n

    def begin(self) -> None:
        """Raises Refusal where the session takes no call."""
        self._sessions.begin(self._name)

    def take(self, index: int, delta: Delta) -> None:
        """What is new of a choice. One that begins with its first token begins anew."""
        if delta.start == 0:
            self._deltas[index] = []
        self._deltas[index].append(delta)

    def to_score(self) -> dict[int, IntArray]:
        """Of each choice, prompt and completion."""
        return {
            index: np.array([*self._prompt(index), *joined(some).token_ids], np.int32)
            for index, some in self._deltas.items()
        }

    def score(self, index: int, logprobs: FloatArray) -> None:
        """Of a choice, what the model itself would have given to its tokens: float32 [n], from the second one of its
        prompt on."""
        self._scores[index] = logprobs[len(self._prompt(index)) - 1 :]

    def whole(self) -> None:
        """Every choice has ended."""
        calls = [self._call(index, joined(deltas)) for index, deltas in sorted(self._deltas.items())]
        self._sessions.add(self._name, calls)

    def end(self) -> None:
        """Nothing more comes, whether it is whole or not."""
        self._sessions.end(self._name)

    def _call(self, index: int, one: Delta) -> Call:
        prompt, text = self._prompt(index), self._asked.texts[index // self._asked.n]
        if text is not None:
            text += self._shown(np.array(one.token_ids, np.int32), one.finish_reason)
        own = self._own(index, one.logprobs)
        answer, ids = self._answer(index, one), prompt.tolist()
        said = (one.token_ids, one.logprobs, one.spans, one.finish_reason)
        return Call(ids, *said, text, answer, routes=one.routes, own=own)

    def _prompt(self, index: int) -> IntArray:
        return self._asked.prompts[index // self._asked.n]

    def _own(self, index: int, sampled: Sequence[float]) -> Own:
        """sampled: log-probs of what the grammar left, in which each token was drawn."""
        if self._asked.grammar is None:
            return None
        scores = self._scores[index][: len(sampled)]
        left = scores - np.array(sampled[: len(scores)])
        # One that has no score, since it is the last that fits, is not known to be the model's.
        return [*(left >= math.log(LEAST_LEFT)).tolist(), *[False] * (len(sampled) - len(scores))]

    def _answer(self, index: int, one: Delta) -> tuple[ParsedMessage, str] | None:
        """Of a choice of which tool calls or thoughts were read, where a template can write it as it was sampled: its
        message, and the text of that."""
        if self._reader is None or not self._reader.reads_content:
            return None
        said = self._reader.parse(index, one.text, one.finish_reason)
        before = self._asked.continued
        if before is None:
            return (said, one.text) if said.calls or said.thoughts else None
        # The client sends back the whole message; thoughts that it began are no part of the text.
        content = said.content if self._asked.thinks else before.said + said.content
        was_read = said.calls or said.thoughts or before.said != before.written
        return (said._replace(content=content), before.written + one.text) if was_read else None

    def _shown(self, ids: IntArray, finish_reason: str) -> str:
        """What was read of sampled ids, and behind it the token that ended them: a template writes that one itself."""
        written, last = self._asked.written, ids[-1:]
        text = self._tokenizer.decode(ids, written=written)
        ended = finish_reason == FinishReason.STOP and not self._tokenizer.decode(last, written=written)
        return text + self._tokenizer.decode(last, special_tokens=True) if ended else text
