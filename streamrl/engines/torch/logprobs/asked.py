"""What running requests are told beside their tokens, kept until they are: the likeliest tokens in each place, and the
log-probs of their prompts. Pure.

Guaranteed: a request that asked for nothing is not looked at; each place is that of its token, whatever the request
came with. It knows requests by their ids, and no rows but those of one pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrl.engines.torch.slots import ReadRoutes
from streamrl.types import (
    FloatArray,
    GenerationRequest,
    GenerationResult,
    IntArray,
    LongArray,
    PartialTokens,
    PromptLogprobs,
    TopLogprobs,
)


class Drawn(NamedTuple):
    """What a pass came to. token_ids int64, logprobs float32 [N]: the token of each row. top_logprobs: in its place,
    [N, k] for the most that a row asks for; None where none does, and nothing for a row that does not. prompts: of what
    was read and asked for, with its rows. routes: of all that was read, by a model with experts."""

    token_ids: LongArray
    logprobs: FloatArray
    top_logprobs: TopLogprobs | None = None
    prompts: Sequence[tuple[tuple[int, ...], PromptLogprobs]] = ()
    routes: ReadRoutes | None = None


class _Asked:
    """Of one request. ids, logprobs: [k] of each token so far."""

    def __init__(self, request: GenerationRequest) -> None:
        self.most = request.top_logprobs
        known = 0 if request.so_far is None else request.so_far.end
        self.ids: list[IntArray] = [np.full(self.most, -1, np.int32)] * known
        self.logprobs: list[FloatArray] = [np.full(self.most, -np.inf, np.float32)] * known
        self.prompt: PromptLogprobs | None = None
        self.told = False
        if request.prompt_logprobs and len(request.prompt_ids) == 1:
            self.score(PromptLogprobs(np.empty(0, np.float32), TopLogprobs(*_none(self.most))))

    def score(self, prompt: PromptLogprobs) -> None:
        told = prompt.top_logprobs if self.most else None
        if told is not None:
            told = TopLogprobs(_wide(told.token_ids, self.most, -1), _wide(told.logprobs, self.most, -np.inf))
        self.prompt = PromptLogprobs(prompt.logprobs, told)

    def add(self, ids: IntArray, logprobs: FloatArray) -> None:
        self.ids.append(_wide(ids, self.most, -1))
        self.logprobs.append(_wide(logprobs, self.most, -np.inf))

    def top_logprobs(self, start: int, stop: int) -> TopLogprobs | None:
        """In the places of the tokens `start` to stop - 1."""
        if not self.most:
            return None
        if stop <= start:
            return TopLogprobs(*_none(self.most))
        return TopLogprobs(np.stack(self.ids[start:stop]), np.stack(self.logprobs[start:stop]))


class AskedLogprobs:
    """Of the running requests that asked for some.

    Example:
        asked.begin(requests)
        asked.note({row: request_id}, drawn, known)             # of each pass, while its requests still run
        results = asked.finish(results)
    """

    def __init__(self) -> None:
        self._asked: dict[str, _Asked] = {}

    def __bool__(self) -> bool:
        return bool(self._asked)

    def begin(self, requests: Iterable[GenerationRequest]) -> None:
        """These start now."""
        self._asked |= {one.request_id: _Asked(one) for one in requests if one.top_logprobs or one.prompt_logprobs}

    def note(self, ids: Mapping[int, str], drawn: Drawn, known: npt.NDArray[np.bool_]) -> None:
        """What a pass says. ids: of the requests in the rows. known: bool [N], rows whose token was known before."""
        running = {row: asked for row, name in ids.items() if (asked := self._asked.get(name)) is not None}
        for rows, prompt in drawn.prompts:
            for row in rows:
                if row in running:
                    running[row].score(prompt)
        for row, asked in running.items():
            if drawn.top_logprobs is not None and asked.most and not known[row]:
                asked.add(drawn.top_logprobs.token_ids[row], drawn.top_logprobs.logprobs[row])

    def finish(self, results: list[GenerationResult]) -> list[GenerationResult]:
        """The same results, with all that their requests asked for; these have ended."""
        if not self._asked:
            return results
        return [self._finished(result, self._asked.pop(result.request_id, None)) for result in results]

    def tell(self, pieces: list[PartialTokens]) -> list[PartialTokens]:
        """The same pieces, with what their requests asked for."""
        if not self._asked:
            return pieces
        return [self._told(piece, self._asked.get(piece.request_id)) for piece in pieces]

    @staticmethod
    def _finished(result: GenerationResult, asked: _Asked | None) -> GenerationResult:
        if asked is None:
            return result
        return replace(result, top_logprobs=asked.top_logprobs(0, len(result.token_ids)), prompt=asked.prompt)

    @staticmethod
    def _told(piece: PartialTokens, asked: _Asked | None) -> PartialTokens:
        if asked is None:
            return piece
        prompt = None if asked.told else asked.prompt
        asked.told = True
        return replace(piece, top_logprobs=asked.top_logprobs(piece.start, piece.end), prompt=prompt)


def _wide(told: npt.NDArray[Any], most: int, nothing: float) -> npt.NDArray[Any]:
    """A copy whose rows have just so many: a vocabulary may have fewer tokens."""
    first = told[..., :most]
    missing = [*((0, 0) for _ in told.shape[:-1]), (0, most - first.shape[-1])]
    return np.pad(first, missing, constant_values=nothing)


def _none(most: int) -> tuple[IntArray, FloatArray]:
    return np.empty((0, most), np.int32), np.empty((0, most), np.float32)
