"""Which requests an engine refuses, which need no pass any more, and which of the waiting ones start in the next one.
Pure functions.
"""

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from streamrl.engines.torch.kept import KeptPrefixes
from streamrl.scheduling.partial_rollouts import fault_of
from streamrl.types import MOST_TOP_LOGPROBS, GenerationRequest, IntArray, LongArray, SamplingParams, Version

PREFILL_TOKENS = 2048
"""Prompt tokens of one pass, at most (one prompt always goes): bounds the memory of activations."""

SEED_LIMIT = 2**63


class Targets(NamedTuple):
    """What is to be told of the first n tokens of a segment. token_ids: int64 [n], what stands behind each, of which
    the log-prob is told. top_logprobs: so many of the likeliest are told there, too."""

    token_ids: LongArray
    top_logprobs: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens (int64 [p]) at positions 0..p-1, to be written to each of `slots`. When there are several slots, all
    read the same token next, at position p. targets: where log-probs of the prompt are told."""

    token_ids: LongArray
    slots: tuple[int, ...]
    targets: Targets | None = None


@dataclass(frozen=True, slots=True)
class Rest:
    """Tokens (int64 [p]) at positions `start` to start + p - 1 of `slot`, behind what its cache holds, each read as a
    token that was just sampled: so its numbers are those of a request that was never interrupted."""

    token_ids: LongArray
    start: int
    slot: int


class Budget(Protocol):
    """How many more requests the KV cache takes, counted before they start."""

    def take(self, tokens: int, shared_tokens: int = 0) -> bool:
        """Count in a request of `tokens` tokens at most, of which the first `shared_tokens` are those of one that was
        counted before. Returns whether it fits; one that does not is not counted."""
        ...


class SlotBudget:
    """Where each slot has memory for the longest request, any request fits."""

    def take(self, tokens: int, shared_tokens: int = 0) -> bool:
        return True


def find_faults(requests: Sequence[GenerationRequest], max_length: int, vocab_size: int) -> dict[int, str]:
    """Why a request can never run, by its place in `requests`; those that can run are absent."""
    samplings = {request.sampling: _sampling_fault(request.sampling) for request in requests}
    faults = {}
    for place, request in enumerate(requests):
        fault = _length_fault(request, max_length) or samplings[request.sampling]
        if not fault and not 0 <= request.seed < SEED_LIMIT:
            fault = f"seed {request.seed} is outside [0, 2**63)"
        if not fault and not 0 <= request.top_logprobs <= MOST_TOP_LOGPROBS:
            fault = f"top_logprobs = {request.top_logprobs} is outside 0..{MOST_TOP_LOGPROBS}"
        if not fault and request.so_far is not None:
            fault = fault_of(request.so_far, request, vocab_size)
        if fault:
            faults[place] = fault
    for place in _foreign_ids(requests, vocab_size):
        faults.setdefault(place, f"the prompt has a token id outside the vocabulary of {vocab_size}")
    return faults


def _length_fault(request: GenerationRequest, max_length: int) -> str:
    prompt, new = len(request.prompt_ids), request.sampling.max_new_tokens
    if prompt == 0:
        return "the prompt is empty; it needs at least one token"
    if prompt + new > max_length:
        return f"prompt of {prompt} + max_new_tokens of {new} is over the engine's length of {max_length}"
    return ""


def _sampling_fault(sampling: SamplingParams) -> str:
    allowed = {
        "temperature": 0.0 <= sampling.temperature < float("inf"),
        "top_p": 0.0 < sampling.top_p <= 1.0,
        "top_k": sampling.top_k >= 0,
        "min_p": 0.0 <= sampling.min_p <= 1.0,
        "max_new_tokens": sampling.max_new_tokens >= 1,
    }
    wrong = [f"{name} = {getattr(sampling, name)}" for name, holds in allowed.items() if not holds]
    return f"out of range: {', '.join(wrong)}" if wrong else ""


def _foreign_ids(requests: Sequence[GenerationRequest], vocab_size: int) -> list[int]:
    """Places of the requests with an id that the model has no embedding for. One look at all prompts together
    is the common case; two calls for each request would cost more than a small model's prefill."""
    if not requests:
        return []
    together = np.concatenate([request.prompt_ids for request in requests])
    if not together.size or (together.min() >= 0 and together.max() < vocab_size):
        return []
    prompts = [request.prompt_ids for request in requests]
    return [i for i, ids in enumerate(prompts) if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size)]


@dataclass(frozen=True, slots=True)
class Start:
    """How a request starts. head: what of it is read at once. rest: known tokens behind it that are read one by one
    in the same pass; without any, tokens that it came with and that are not in the head are read one by one, a pass
    each. kept: (slot, tokens) of what the cache has of it already, in the place of a head."""

    request: GenerationRequest
    head: IntArray
    rest: IntArray
    kept: tuple[int, int] | None = None

    @property
    def length(self) -> int:
        """Tokens that are known when the first pass with it has begun: the last one is read by its own row."""
        return len(self.head) + len(self.rest)

    @property
    def cost(self) -> int:
        """Tokens that the first pass reads."""
        return self.length - (0 if self.kept is None else self.kept[1])


@dataclass(frozen=True, slots=True)
class Admission:
    """Requests that start now, and which of their heads are equal: `members[i]` are the places in `starts` of those
    with the i-th distinct one. A request with a rest, or of which something is kept, shares its head with no other."""

    starts: tuple[Start, ...]
    members: tuple[tuple[int, ...], ...]

    @property
    def requests(self) -> tuple[GenerationRequest, ...]:
        return tuple(start.request for start in self.starts)

    def lengths(self) -> LongArray:
        """int64, tokens of each request that are known to its first pass."""
        return np.array([start.length for start in self.starts], dtype=np.int64)

    def segments(self, slots: LongArray) -> tuple[Segment, ...]:
        """What to prefill when request i goes to `slots[i]`. The last token of a head is left to the decode row,
        which samples from it, or to the rest."""
        found = []
        for places in self.members:
            start = self.starts[places[0]]
            if start.kept is None and (len(start.head) > 1 or len(places) > 1):
                rows, targets = tuple(slots[list(places)].tolist()), self._targets(places)
                found.append(Segment(start.head[:-1].astype(np.int64), rows, targets))
        return tuple(found)

    def _targets(self, places: Sequence[int]) -> Targets | None:
        """Of requests with an equal prompt."""
        requests = [self.starts[place].request for place in places]
        behind = requests[0].prompt_ids[1:].astype(np.int64)
        if not requests[0].prompt_logprobs or not len(behind):
            return None
        return Targets(behind, max(request.top_logprobs for request in requests))

    def rests(self, slots: LongArray) -> tuple[Rest, ...]:
        """What to read behind that, where there is something."""
        found = []
        for start, slot in zip(self.starts, slots.tolist(), strict=True):
            first = len(start.head) - 1 if start.kept is None else start.kept[1]
            known = np.concatenate((start.head, start.rest))[first:-1]
            if len(start.rest) and len(known):
                found.append(Rest(known.astype(np.int64), first, slot))
        return tuple(found)

    def kept(self, slots: LongArray) -> tuple[tuple[int, int, int], ...]:
        """(from slot, to slot, tokens) of what the cache has already."""
        pairs = zip(self.starts, slots.tolist(), strict=True)
        return tuple((start.kept[0], slot, start.kept[1]) for start, slot in pairs if start.kept is not None)


def head_of(request: GenerationRequest, version: Version, exact: bool) -> IntArray:
    """The tokens of a request that a pass may read at once before `version` samples.

    Reading a sampled token with others rounds in another way than reading it alone, as it was when it had just been
    sampled. So where `exact` results are promised for one version, and it is this one that sampled them, they are left
    out, to be read again one by one.
    """
    so_far = request.so_far
    if so_far is None or (exact and all(span.version == version for span in so_far.version_spans)):
        return request.prompt_ids
    return known_of(request)


def known_of(request: GenerationRequest) -> IntArray:
    """The prompt, and the tokens that the request came with."""
    if request.so_far is None:
        return request.prompt_ids
    return np.concatenate((request.prompt_ids, request.so_far.token_ids))


class Reading:
    """How requests are read before `version` samples. exact: its results do not depend on what was kept or interrupted.
    kept: of an engine whose passes can read a rest, which alone keeps anything; None for another."""

    def __init__(self, version: Version, exact: bool, kept: KeptPrefixes | None) -> None:
        self._version, self._exact, self._kept = version, exact, kept

    def start(self, request: GenerationRequest) -> Start:
        head = head_of(request, self._version, self._exact)
        if self._kept is None:
            return Start(request, head, head[:0])
        known, opening = known_of(request), request.opening or len(request.prompt_ids)
        if request.prompt_logprobs:
            # Each of its tokens is read, whatever the cache has.
            return Start(request, head, known[len(head) :])
        found = self._kept.find(request.conversation, known, opening)
        if found is not None:
            return Start(request, known[:opening], known[opening:], found)
        if self._exact and len(head) <= len(request.prompt_ids):
            # What came behind the opening was sampled, or read, one by one.
            head = head[:opening]
        return Start(request, head, known[len(head) :])

    def started(self, start: Start) -> None:
        """It is read now: what was kept for it is its own."""
        if self._kept is None:
            return
        if start.kept is not None:
            self._kept.taken(start.request.conversation)
        else:
            self._kept.let_go(start.request.conversation)


def admit(
    waiting: deque[GenerationRequest], room: int, reading: Reading, budget: Budget, most_tokens: int
) -> Admission:
    """Take from the head of `waiting` at most `room` requests, as many as the cache has memory for (`budget`) and as
    start together: `most_tokens` tokens of theirs are read at once, and one request always is. Requests with equal
    heads, no rest and nothing kept cost that of one of them, and share what they can of the cache."""
    starts: list[Start] = []
    members: dict[Hashable, list[int]] = {}
    tokens = 0
    while waiting and len(starts) < room:
        start = reading.start(waiting[0])
        alone = len(start.rest) > 0 or start.kept is not None
        key = len(starts) if alone else _head_key(start)
        new = key not in members
        if new and starts and tokens + start.cost > most_tokens:
            break
        there = len(start.head) - 1 if not new else 0 if start.kept is None else start.kept[1]
        if not budget.take(most_length(start.request), there):
            break
        tokens += start.cost if new else 0
        members.setdefault(key, []).append(len(starts))
        starts.append(start)
        reading.started(start)
        waiting.popleft()
    return Admission(tuple(starts), tuple(map(tuple, members.values())))


def _head_key(start: Start) -> Hashable:
    """Equal for requests that are read as one."""
    request = start.request
    return start.head.tobytes(), len(request.prompt_ids) if request.prompt_logprobs else 0


def most_length(request: GenerationRequest) -> int:
    """Tokens that a request may come to have, its prompt included."""
    return len(request.prompt_ids) + request.sampling.max_new_tokens
