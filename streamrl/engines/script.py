"""What the scripted engine will say to each request, decided when it starts.

Everything follows from the request's seed by a counter-based hash, for a whole batch at once: no state, so no
order of requests can change an answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamrl.config.schema.rollout import ScriptedConfig
from streamrl.types import FinishReason, FloatArray, GenerationRequest, IntArray, LongArray

_Uniform = npt.NDArray[np.float64]

# Which draw of a seed is what. Tokens and log-probs take the counters from _TOKENS on, two for each token.
_LENGTH_A, _LENGTH_B, _ERROR, _NAN, _CORRECT, _HANG = range(6)
_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Script:
    """token_ids int32 [n], logprobs float32 [n], n >= 1; how it ends after n steps, or that it never does."""

    token_ids: IntArray
    logprobs: FloatArray
    finish_reason: FinishReason
    hangs: bool = False


@dataclass(frozen=True, slots=True)
class ScriptedAnswers:
    """Lets the engine seem to learn.

    answer_of: the correct completion of a prompt (int32 ids), without the end. An answer is correct with
    probability `start + (end - start) * min(1, step / steps)`, where `step` is that of the version at its
    start; else it has the same length and random ids. Its length replaces `latency_steps`.
    """

    answer_of: Callable[[IntArray], Sequence[int]]
    start: float = 0.3
    end: float = 0.95
    steps: int = 100

    def skill(self, step: int) -> float:
        """Probability of a correct answer under the version of `step`."""
        return self.start + (self.end - self.start) * min(1.0, step / self.steps)


def write_scripts(
    requests: Sequence[GenerationRequest],
    config: ScriptedConfig,
    answers: ScriptedAnswers | None,
    steps: Sequence[int],
    vocab_size: int,
    eos_token_id: int,
) -> list[Script]:
    """One script for each request, as long as it is from its first token on. `steps`: of the version that sampled that,
    or will."""
    seeds = np.array([request.seed for request in requests], np.uint64)
    known = [None if answers is None else answers.answer_of(request.prompt_ids) for request in requests]
    wanted = _lengths(seeds, config, known)
    limits = np.array([request.sampling.max_new_tokens for request in requests], np.int64)
    lengths = np.minimum(wanted, limits)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    tokens = _noise_tokens(seeds, lengths, offsets, vocab_size, eos_token_id)
    skills = np.array([answers.skill(step) if answers else 0.0 for step in steps])
    correct = _uniform(seeds, _CORRECT) < skills
    for answer, right, low, length in zip(known, correct, offsets[:-1], lengths, strict=True):
        if right and answer is not None:
            heard = answer[:length]
            tokens[low : low + len(heard)] = heard
    complete = wanted <= limits
    tokens[offsets[1:][complete] - 1] = eos_token_id
    logprobs = _logprobs(seeds, lengths, offsets, config.logprob_bias)
    logprobs[offsets[1:][_uniform(seeds, _NAN) < config.nan_rate] - 1] = np.nan
    failing = _uniform(seeds, _ERROR) < config.error_rate
    hanging = (_uniform(seeds, _HANG) < config.hang_rate).tolist()
    return [
        Script(tokens[low:high], logprobs[low:high], _finish_reason(done, error), hangs)
        for low, high, done, error, hangs in zip(offsets[:-1], offsets[1:], complete, failing, hanging, strict=True)
    ]


def _finish_reason(complete: bool, failing: bool) -> FinishReason:
    if failing:
        return FinishReason.ERROR
    return FinishReason.STOP if complete else FinishReason.LENGTH


def _lengths(seeds: npt.NDArray[np.uint64], config: ScriptedConfig, known: list[Sequence[int] | None]) -> LongArray:
    """int64 [N] of tokens, the end included, before the limit of the request."""
    if config.heavy_tail:
        normal = _standard_normal(seeds)
        shift = config.heavy_tail**2 / 2  # keeps the mean at latency_steps
        drawn = config.latency_steps * np.exp(config.heavy_tail * normal - shift)
        lengths: LongArray = np.maximum(1, np.rint(drawn)).astype(np.int64)
    else:
        lengths = np.full(len(seeds), config.latency_steps, np.int64)
    for index, answer in enumerate(known):
        if answer is not None:
            lengths[index] = len(answer) + 1
    return lengths


def _noise_tokens(
    seeds: npt.NDArray[np.uint64], lengths: LongArray, offsets: LongArray, vocab_size: int, eos_token_id: int
) -> IntArray:
    """int32 [T], uniform over the vocabulary without the end."""
    draws = _uniform(np.repeat(seeds, lengths), _TOKENS + 2 * _positions(lengths, offsets))
    tokens = (draws * (vocab_size - 1)).astype(np.int32)
    return (tokens + (tokens >= eos_token_id)).astype(np.int32)


def _logprobs(seeds: npt.NDArray[np.uint64], lengths: LongArray, offsets: LongArray, bias: float) -> FloatArray:
    """float32 [T] in (-2, 0], plus the bias: plausible, and reproducible."""
    draws = _uniform(np.repeat(seeds, lengths), _TOKENS + 1 + 2 * _positions(lengths, offsets))
    return (-2.0 * draws + bias).astype(np.float32)


def _positions(lengths: LongArray, offsets: LongArray) -> LongArray:
    return np.arange(int(offsets[-1]), dtype=np.int64) - np.repeat(offsets[:-1], lengths)


def _standard_normal(seeds: npt.NDArray[np.uint64]) -> _Uniform:
    """Box-Muller; `1 - u` keeps the logarithm finite."""
    radius = np.sqrt(-2.0 * np.log(1.0 - _uniform(seeds, _LENGTH_A)))
    return radius * np.cos(2.0 * np.pi * _uniform(seeds, _LENGTH_B))


def _uniform(seeds: npt.NDArray[np.uint64], counter: "int | LongArray") -> _Uniform:
    """float64 in [0, 1): draw number `counter` of each seed. SplitMix64 (Steele, Lea, Flood 2014), twice, so
    that neighbouring seeds and neighbouring counters are unrelated."""
    bits = _mix(_mix(seeds) + np.asarray(counter).astype(np.uint64)) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
