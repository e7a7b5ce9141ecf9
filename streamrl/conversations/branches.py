"""The rows that a conversation comes to: turns of exact ids, with a log-prob and a version for each that was sampled.

prompt ids | sampled ids | environment's ids | sampled ids | ...        one branch; a fork is another one
"""

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Branch:
    """A row. finish_reason: of its last turn, "stop" or "length"."""

    turns: Sequence[Turn]
    finish_reason: str

    @property
    def num_tokens(self) -> int:
        return sum(len(turn.prompt_ids) + len(turn.token_ids) for turn in self.turns)
