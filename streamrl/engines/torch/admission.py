"""Which requests an engine refuses, which need no pass any more, and which of the waiting ones start in the next one.
Pure functions.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamrl.engines.torch.plan import Segment
from streamrl.partials import fault_of
from streamrl.types import GenerationRequest, IntArray, LongArray, SamplingParams, Version

PREFILL_TOKENS = 2048
"""Prompt tokens of one pass, at most (one prompt always goes): bounds the memory of activations."""

SEED_LIMIT = 2**63


def find_faults(requests: Sequence[GenerationRequest], max_length: int, vocab_size: int) -> dict[int, str]:
    """Why a request can never run, by its place in `requests`; those that can run are absent."""
    samplings = {request.sampling: _sampling_fault(request.sampling) for request in requests}
    faults = {}
    for place, request in enumerate(requests):
        fault = _length_fault(request, max_length) or samplings[request.sampling]
        if not fault and not 0 <= request.seed < SEED_LIMIT:
            fault = f"seed {request.seed} is outside [0, 2**63)"
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
class Admission:
    """Requests that start now, what of each is read at once (`heads`: its prompt, or also tokens that it came with),
    and which of these are equal: `members[i]` are the places in `requests` of those with the i-th distinct head."""

    requests: tuple[GenerationRequest, ...]
    heads: tuple[IntArray, ...]
    members: tuple[tuple[int, ...], ...]

    def lengths(self) -> LongArray:
        """int64, tokens of each request that are read at once."""
        return np.array([len(head) for head in self.heads], dtype=np.int64)

    def segments(self, slots: LongArray) -> tuple[Segment, ...]:
        """What to prefill when request i goes to `slots[i]`. The last token of a head is left to the decode row,
        which samples from it."""
        prompts = [self.heads[places[0]] for places in self.members]
        return tuple(
            Segment(prompt[:-1].astype(np.int64), tuple(slots[list(places)].tolist()))
            for prompt, places in zip(prompts, self.members, strict=True)
            if len(prompt) > 1 or len(places) > 1
        )


def head_of(request: GenerationRequest, version: Version, exact: bool) -> IntArray:
    """The tokens of a request that a pass may read at once before `version` samples.

    Reading a sampled token with others rounds in another way than reading it alone, as it was when it had just been
    sampled. So where `exact` results are promised for one version, and it is this one that sampled them, they are left
    out, to be read again one by one.
    """
    so_far = request.so_far
    if so_far is None or (exact and all(span.version == version for span in so_far.version_spans)):
        return request.prompt_ids
    return np.concatenate((request.prompt_ids, so_far.token_ids))


def admit(waiting: deque[GenerationRequest], room: int, version: Version, exact: bool) -> Admission:
    """Take from the head of `waiting` at most `room` requests, as many as fit into one pass of `version`. Requests with
    equal heads (see `head_of`) cost it one of them."""
    taken: list[GenerationRequest] = []
    heads: list[IntArray] = []
    members: dict[bytes, list[int]] = {}
    tokens = 0
    while waiting and len(taken) < room:
        request = waiting[0]
        head = head_of(request, version, exact)
        key = head.tobytes()
        if key not in members:
            tokens += len(head)
            if taken and tokens > PREFILL_TOKENS:
                break
            members[key] = []
        members[key].append(len(taken))
        taken.append(waiting.popleft())
        heads.append(head)
    return Admission(tuple(taken), tuple(heads), tuple(map(tuple, members.values())))
