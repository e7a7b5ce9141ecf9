"""Log-probs in the words of OpenAI and of vLLM. Pure.

Guarantees: in the place of a token its own log-prob is told wherever the token is, among the likeliest too, so that
both are the same number; every number is finite, as JSON's are.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamrl.gateway.openai.choice import Delta
from streamrl.gateway.openai.extras import Echo
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import PromptLogprobs, TopLogprobs

LEAST = -9999.0
"""What OpenAI and vLLM tell of a token that cannot be."""
Json = dict[str, Any]


class Scored(NamedTuple):
    """A token and its log-prob."""

    token_id: int
    logprob: float


class TokenTexts:
    """The text of each token by itself, decoded once."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    def text(self, token_id: int) -> str:
        if token_id not in self._known:
            self._known[token_id] = self._tokenizer.decode(np.array([token_id], np.int32))
        return self._known[token_id]

    def name(self, as_ids: bool) -> Callable[[int], str]:
        """What log-probs are told of: texts, or ids as vLLM writes them."""
        return id_name if as_ids else self.text


def id_name(token_id: int) -> str:
    return f"token_id:{token_id}"


def completion_logprobs(
    delta: Delta, top: int, name: Callable[[int], str], prompt: Sequence[int] = (), echo: Echo | None = None
) -> Json:
    """The lists of `/v1/completions`. prompt: the ids that an answer begins with, where this is its beginning. echo: of
    an answer that begins with its prompt; its log-probs are in the delta."""
    own = _sampled(delta)
    tops: list[dict[str, float] | None] = [_by_text(*one, name) for one in _places(delta.top_logprobs, own, top)]
    told: list[float | None] = list(delta.logprobs)
    offsets = delta.offsets if echo is None else [len(echo.text) + offset for offset in delta.offsets]
    if prompt and echo is not None:
        scored = _of_prompt(prompt, delta.prompt)
        before = _places(None if delta.prompt is None else delta.prompt.top_logprobs, scored, top)
        tops = [None, *(_by_text(*one, name) for one in before), *tops]
        told = [None, *(one.logprob for one in scored), *told]
        offsets = [*echo.offsets, *offsets]
    tokens = [name(token_id) for token_id in (*prompt, *delta.token_ids)]
    return {"tokens": tokens, "token_logprobs": told, "text_offset": offsets, "top_logprobs": tops if top else None}


def content_logprobs(delta: Delta, top: int, entry: Callable[[int, float], Json]) -> list[Json]:
    """The list of a chat. entry: words one token and its log-prob."""
    return [
        {**entry(*own), "top_logprobs": [entry(*other) for other in others]}
        for own, others in _places(delta.top_logprobs, _sampled(delta), top)
    ]


def told_as_text(name: Callable[[int], str]) -> Callable[[int, float], Json]:
    """An entry of the lists of chats and responses."""

    def entry(token_id: int, logprob: float) -> Json:
        token = name(token_id)
        return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

    return entry


def prompt_logprobs(
    prompt: Sequence[int], scores: PromptLogprobs | None, top: int, text: Callable[[int], str] | None
) -> list[Json | None]:
    """vLLM's list: null for the first token; of each other one an object of the token itself and of the likeliest in
    its place, by id. `rank` is 1 for the likeliest, and null for a token that is not among those that are known. text:
    of a token; None where there are no texts."""
    own = _of_prompt(prompt, scores)
    told = scores.top_logprobs if scores is not None else None
    places = _places(told, own, 0 if told is None else told.token_ids.shape[1])
    return [None, *(_by_id(*one, top, text) for one in places)]


def _sampled(delta: Delta) -> list[Scored]:
    return [Scored(*one) for one in zip(delta.token_ids, delta.logprobs, strict=True)]


def _of_prompt(prompt: Sequence[int], scores: PromptLogprobs | None) -> list[Scored]:
    """Of its second token on."""
    logprobs = [] if scores is None else scores.logprobs.tolist()
    return [Scored(token_id, max(logprob, LEAST)) for token_id, logprob in zip(prompt[1:], logprobs, strict=True)]


def _places(told: TopLogprobs | None, own: list[Scored], top: int) -> list[tuple[Scored, list[Scored]]]:
    """Each token with the `top` likeliest in its place, the likeliest first; fewer where there are fewer."""
    if not top:
        return [(one, []) for one in own]
    ids = [] if told is None else told.token_ids[:, :top].tolist()
    logprobs = [] if told is None else told.logprobs[:, :top].tolist()
    return [
        (one, [_same(one, Scored(*other)) for other in zip(*row, strict=True) if _is_told(*other)])
        for one, *row in zip(own, ids, logprobs, strict=True)
    ]


def _is_told(token_id: int, logprob: float) -> bool:
    return token_id >= 0 and math.isfinite(logprob)


def _same(own: Scored, other: Scored) -> Scored:
    """A token among the likeliest, with its own log-prob where it is the one in this place."""
    return own if own.token_id == other.token_id else other


def _by_text(own: Scored, others: list[Scored], name: Callable[[int], str]) -> dict[str, float]:
    """By their texts, the likeliest first, the token of the place always among them. Of equal texts the token itself
    has its text, then the likeliest; others are called by their ids, so that no number is lost."""
    told = {name(own.token_id): own.logprob}
    for token_id, logprob in others:
        if token_id != own.token_id:
            text = name(token_id)
            told[id_name(token_id) if text in told else text] = logprob
    return dict(sorted(told.items(), key=lambda one: -one[1]))


def _by_id(own: Scored, known: list[Scored], top: int, text: Callable[[int], str] | None) -> Json:
    ranks = {other.token_id: rank for rank, other in enumerate(known, 1)}
    return {
        str(token_id): {
            "logprob": logprob,
            "rank": ranks.get(token_id),
            "decoded_token": None if text is None else text(token_id),
        }
        for token_id, logprob in dict([own, *known[:top]]).items()
    }
