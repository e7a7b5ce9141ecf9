"""What a replica remembers of a rollout, and the gate that each result passes. Pure: no Ray, no Arrow, no I/O."""

from dataclasses import dataclass

import numpy as np

from streamrl.types import (
    FinishReason,
    GenerationResult,
    IntArray,
    Ticket,
)


@dataclass(frozen=True, slots=True)
class Issued:
    """What the replica remembers of a rollout while the engine works on it."""

    ticket: Ticket
    sample_index: int
    group_id: str
    prompt_id: str
    prompt_ids: IntArray
    payload: str
    started_ns: int


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that ended, and when (wall clock, ns)."""

    issued: Issued
    result: GenerationResult
    finished_ns: int


def finite(result: GenerationResult, replica: str) -> GenerationResult:
    """The result itself, or an error in its place when a log-prob is not finite: that never reaches the log
    (invariant 12)."""
    if np.isfinite(result.logprobs).all():
        return result
    position = int(np.flatnonzero(~np.isfinite(result.logprobs))[0])
    error = f"non-finite log-prob {result.logprobs[position]} at token {position} from {replica}"
    return GenerationResult(
        result.request_id,
        np.empty(0, np.int32),
        np.empty(0, np.float32),
        (),
        FinishReason.ERROR,
        error,
    )
