"""Drawing one token for each row, and the log-probability it had.

Guaranteed: the token of a row is a function of the row's logits, sampling parameters, seed and token index and
of nothing else; there is no generator state. The uniform number comes from a counter-based hash (splitmix64,
Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014), the token from the inverse of the
cumulative distribution. A token of probability zero is never drawn.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from streamrl.types import FloatArray, LongArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
DRAWN_TOKENS = 8
"""Tokens that `Draws` makes uniform numbers for at once."""

UNIFORM_BITS = 24
"""Bits of a uniform number: as many as float32 holds exactly, so that 1.0 is never reached by rounding."""


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """splitmix64's finaliser: a bijection of 64-bit integers whose output looks random."""
    values = (values ^ (values >> np.uint64(30))) * MIX_1
    values = (values ^ (values >> np.uint64(27))) * MIX_2
    return values ^ (values >> np.uint64(31))


def uniforms(streams_N: npt.NDArray[np.uint64], index_N: LongArray) -> FloatArray:
    """float32 in [0, 1), [N] or what `index` broadcasts to: number `index` of each stream. A stream is a mixed
    seed: `mix(seed)`."""
    bits = mix(streams_N + (index_N.astype(np.uint64) + np.uint64(1)) * GOLDEN)
    return (bits >> np.uint64(64 - UNIFORM_BITS)).astype(np.float32) * np.float32(2.0**-UNIFORM_BITS)


class Draws:
    """The uniform numbers of the same N rows, token after token; made for DRAWN_TOKENS at once.

    streams: uint64 [N], see `uniforms`. index: int64 [N], the number of each row's next token.
    """

    def __init__(self, streams: npt.NDArray[np.uint64], index: LongArray, device: torch.device) -> None:
        self._streams, self._index = streams.copy(), index.copy()
        self._device = device
        self._block: torch.Tensor | None = None
        self._used = 0

    def next(self) -> torch.Tensor:
        """float32 [N], for each row's next token."""
        if self._block is None or self._used == DRAWN_TOKENS:
            ahead = np.arange(DRAWN_TOKENS)[:, None]
            self._block = torch.from_numpy(uniforms(self._streams, self._index + ahead)).to(self._device)
            self._index += DRAWN_TOKENS
            self._used = 0
        self._used += 1
        return self._block[self._used - 1]


@dataclass(frozen=True, slots=True)
class Truncation:
    """Rows that sample from a truncated distribution. `rows` int64 [K] names them, the others are [K] too:
    top_k int64 (0 off), top_p float32 (1 off), min_p float32 (0 off). A part that no row uses is None."""

    rows: torch.Tensor
    top_k: torch.Tensor | None
    top_p: torch.Tensor | None
    min_p: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How N rows sample; what no row needs is None and costs nothing.

    temperature: float32 [N], 1 for a greedy row; None when all are 1. greedy: bool [N]; None when none is.
    """

    temperature: torch.Tensor | None
    greedy: torch.Tensor | None
    all_greedy: bool
    truncation: Truncation | None


PLAIN = SamplingRows(temperature=None, greedy=None, all_greedy=False, truncation=None)
"""Every row samples from the model's own distribution."""


def sampling_rows(
    temperature: FloatArray, top_k: LongArray, top_p: FloatArray, min_p: FloatArray, device: torch.device
) -> SamplingRows:
    """How rows sample whose parameters are these, [N] each."""
    cut = np.flatnonzero((top_k > 0) | (top_p < 1) | (min_p > 0))
    if not cut.size and (temperature == 1).all():
        return PLAIN
    greedy = temperature == 0
    cut = cut[~greedy[cut]]
    divisor = np.where(greedy, np.float32(1), temperature)

    def upload(array: npt.NDArray[np.generic]) -> torch.Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    truncation = Truncation(
        rows=upload(cut),
        top_k=upload(top_k[cut]) if top_k[cut].any() else None,
        top_p=upload(top_p[cut]) if (top_p[cut] < 1).any() else None,
        min_p=upload(min_p[cut]) if min_p[cut].any() else None,
    )
    return SamplingRows(
        temperature=upload(divisor) if (divisor != 1).any() else None,
        greedy=upload(greedy) if greedy.any() else None,
        all_greedy=bool(len(greedy) and greedy.all()),
        truncation=truncation if cut.size else None,
    )


def choose(logits_NV: torch.Tensor, rows: SamplingRows, uniform_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token for each row. Returns token ids int64 [N] and log-probabilities float32 [N].

    The log-probability is that of the sampled distribution: logits divided by the temperature, truncated,
    normalised. A greedy row's is the plain log-softmax (temperature 1, no truncation). A row whose logits are
    not finite gives a non-finite log-probability and an arbitrary valid id.
    """
    scores = sampled_scores(logits_NV, rows)
    logprobs = torch.log_softmax(scores, dim=-1)
    if rows.all_greedy:
        tokens = scores.argmax(dim=-1, keepdim=True)
    else:
        cumulative = logprobs.exp().cumsum_(dim=-1)
        # The first token whose cumulative weight is over the target. 24-bit uniforms keep target < total.
        tokens = torch.searchsorted(cumulative, uniform_N[:, None] * cumulative[:, -1:], right=True)
        tokens.clamp_(max=scores.shape[-1] - 1)
        if rows.greedy is not None:
            tokens = torch.where(rows.greedy[:, None], scores.argmax(dim=-1, keepdim=True), tokens)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def sampled_scores(logits_NV: torch.Tensor, rows: SamplingRows) -> torch.Tensor:
    """What the softmax of the sampled distribution is taken of: logits over temperature, -inf where truncated."""
    scores = logits_NV if rows.temperature is None else logits_NV / rows.temperature[:, None]
    return scores if rows.truncation is None else _truncate(scores, rows.truncation)


def _truncate(scores_NV: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Set to -inf what top-k, then top-p, then min-p remove (the order of transformers). A token that ties with
    the last one kept is kept."""
    part = scores_NV.index_select(0, truncation.rows)
    if truncation.top_k is not None:
        part = part.masked_fill(part < _top_k_floor(part, truncation.top_k), float("-inf"))
    if truncation.top_p is not None:
        part = part.masked_fill(part < _top_p_floor(part, truncation.top_p), float("-inf"))
    if truncation.min_p is not None:
        floor = part.amax(dim=-1, keepdim=True) + truncation.min_p.log()[:, None]
        part = part.masked_fill(part < floor, float("-inf"))
    return scores_NV.index_copy(0, truncation.rows, part)


def _top_k_floor(scores_KV: torch.Tensor, top_k: torch.Tensor) -> torch.Tensor:
    """[K, 1]: the lowest score among each row's best `top_k`, -inf where top-k is off."""
    last = top_k.clamp(1, scores_KV.shape[-1]) - 1
    ordered = scores_KV.sort(dim=-1, descending=True).values
    floor = ordered.gather(1, last[:, None])
    return floor.masked_fill_(top_k[:, None] == 0, float("-inf"))


def _top_p_floor(scores_KV: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """[K, 1]: the lowest score of the smallest best set with probability >= top_p, -inf where top-p is off."""
    ordered = scores_KV.sort(dim=-1, descending=True).values
    probabilities = ordered.softmax(dim=-1)
    better = probabilities.cumsum(dim=-1) - probabilities
    kept = (better < top_p[:, None]).sum(dim=-1, keepdim=True)
    floor = ordered.gather(1, kept.clamp_(min=1) - 1)
    return floor.masked_fill_(top_p[:, None] >= 1.0, float("-inf"))
