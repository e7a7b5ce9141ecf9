"""The rows that a conversation comes to: turns of exact ids, with a log-prob and a version for each that was sampled.

prompt ids | sampled ids | environment's ids | sampled ids | ...        one branch; a fork is another one
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from streamrl.types import RouteArray

Span = tuple[int, int, int]
"""(start, incarnation, step) of the version that sampled the tokens from `start` on."""


@dataclass(frozen=True, slots=True)
class Turn:
    """prompt_ids: what stands before the sampled tokens: the prompt, in later turns what the environment added.
    logprobs: of each sampled token. spans: `start` counted from the turn's first sampled token. routes: of all tokens
    of the branch up to the turn's last one, as a `GenerationResult` has them."""

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: Sequence[Span]
    routes: RouteArray | None = None


Own = Sequence[bool] | None
"""Whether the model chose each of a turn's sampled tokens by itself; None where it chose all of them."""


def own_turns(turns: Iterable[tuple[Turn, Own]]) -> list[Turn]:
    """The turns of a branch with what the model chose alone as their sampled tokens: ids that were chosen for it stand
    among those before the next turn, and what follows the last one is left out."""
    made: list[Turn] = []
    given: list[int] = []
    before = 0
    for turn, own in turns:
        given += turn.prompt_ids
        before += len(turn.prompt_ids)
        for start, stop, chosen in _runs(own, len(turn.token_ids)):
            if not chosen:
                given += turn.token_ids[start:stop]
                continue
            routes = None if turn.routes is None else turn.routes[: before + stop]
            logprobs, spans = turn.logprobs[start:stop], _between(turn.spans, start, stop)
            made.append(Turn(given, turn.token_ids[start:stop], logprobs, spans, routes))
            given = []
        before += len(turn.token_ids)
    return made


def _runs(own: Own, count: int) -> Iterator[tuple[int, int, bool]]:
    """(start, stop, whether it chose them) of tokens that stand together."""
    if own is None:
        yield 0, count, True
        return
    start = 0
    for chosen, some in groupby(own):
        stop = start + len(list(some))
        yield start, stop, chosen
        start = stop


def _between(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    """Of the tokens `start` to stop - 1, counted from the first of these."""
    ends = [*(span[0] for span in spans[1:]), stop]
    some = (span for span, end in zip(spans, ends, strict=True) if end > start and span[0] < stop)
    return [(max(span[0] - start, 0), *span[1:]) for span in some]


@dataclass(frozen=True, slots=True)
class Branch:
    """A row. finish_reason: of its last turn, "stop" or "length"."""

    turns: Sequence[Turn]
    finish_reason: str

    @property
    def num_tokens(self) -> int:
        return sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in self.turns)
