"""Which requests an engine refuses, and which of the waiting ones start in the next pass. Pure functions."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamrl.engines.torch.plan import Segment
from streamrl.types import GenerationRequest, SamplingParams

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
    """Requests that start now, in `slots`, and the prompts that have to be computed for them."""

    requests: tuple[GenerationRequest, ...]
    slots: tuple[int, ...]
    segments: tuple[Segment, ...]


def admit(waiting: deque[GenerationRequest], free_slots: Sequence[int]) -> Admission:
    """Take from the head of `waiting` what fits into the free slots and one pass. Equal prompts share one
    segment. The last prompt token is left to the decode row, which samples from it."""
    taken: list[GenerationRequest] = []
    owners: dict[bytes, list[int]] = {}
    prompts: list[GenerationRequest] = []
    tokens = 0
    while waiting and len(taken) < len(free_slots):
        request = waiting[0]
        key = request.prompt_ids.tobytes()
        if key not in owners:
            tokens += len(request.prompt_ids)
            if taken and tokens > PREFILL_TOKENS:
                break
            owners[key] = []
            prompts.append(request)
        owners[key].append(free_slots[len(taken)])
        taken.append(waiting.popleft())
    segments = tuple(
        Segment(request.prompt_ids[:-1].astype(np.int64), tuple(slots))
        for request, slots in zip(prompts, owners.values(), strict=True)
        if len(request.prompt_ids) > 1 or len(slots) > 1
    )
    return Admission(tuple(taken), tuple(free_slots[: len(taken)]), segments)
