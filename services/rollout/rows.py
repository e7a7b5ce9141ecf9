"""What a replica remembers of a rollout, and the gate that each result passes. Pure: no Ray, no Arrow, no I/O."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamrl.config.schema.streams import TASK
from streamrl.environments.play import EndedEpisode
from streamrl.types import (
    FinishReason,
    GenerationResult,
    IntArray,
    PartialTokens,
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
    stream: str = TASK
    text: str = ""
    """Of the prompt."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A rollout that ended, and when (wall clock, ns)."""

    issued: Issued
    result: GenerationResult
    finished_ns: int

    @property
    def rollout(self) -> str:
        return self.result.request_id

    @property
    def num_versions(self) -> int:
        """That sampled of it."""
        return len(self.result.version_spans)


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """A rollout of several turns that ended, and when (wall clock, ns)."""

    issued: Issued
    rollout: str
    episode: EndedEpisode
    finished_ns: int

    @property
    def num_versions(self) -> int:
        """That sampled of it."""
        return len({span[1:] for branch in self.episode.branches for turn in branch.turns for span in turn.spans})


class Ended(Protocol):
    """Takes rollouts that ended. count: of those that the engine has no more, the ones that nobody waits for included.
    idle: nothing more comes for now."""

    def __call__(
        self, finished: "Sequence[Finished] | Sequence[FinishedEpisode]", count: int, idle: bool, /
    ) -> None: ...


class RunningRollouts:
    """The rollouts that the engine works on, by id, each as it was issued last.

    A group may be issued again to the replica that still runs it (`late = "reissue"`). The engine has two requests of
    one id then, the older of which is to be aborted; whatever comes of that one, once and first, is nobody's.
    """

    def __init__(self) -> None:
        self._issued: dict[str, Issued] = {}
        self._older: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._issued)

    @property
    def issued(self) -> Mapping[str, Issued]:
        return self._issued

    def issue(self, rollout: str, issued: Issued) -> bool:
        """Note a rollout that is to be submitted; whether an older request of its id runs, to be aborted first."""
        again = rollout in self._issued
        if again:
            self._older[rollout] += 1
        self._issued[rollout] = issued
        return again

    def ended(self, rollout: str) -> Issued | None:
        """What a result belongs to; None for one that nobody waits for."""
        if rollout not in self._older:
            return self._issued.pop(rollout, None)
        self._older[rollout] -= 1
        if not self._older[rollout]:
            del self._older[rollout]
        return None

    def of_newest(self, pieces: Iterable[PartialTokens]) -> list[PartialTokens]:
        """The pieces without those of older requests."""
        return [piece for piece in pieces if piece.request_id not in self._older]


def finite(result: GenerationResult, replica: str) -> GenerationResult:
    """The result itself, or an error in its place when a log-prob is not finite: that never reaches the log
    (invariant 12)."""
    if np.isfinite(result.logprobs).all():
        return result
    position = int(np.flatnonzero(~np.isfinite(result.logprobs))[0])
    version = [span.version for span in result.version_spans if span.start <= position][-1:]
    under = f" under version {version[0]}" if version else ""
    error = f"non-finite log-prob {result.logprobs[position]} at token {position} from {replica}{under}"
    return GenerationResult(
        result.request_id,
        np.empty(0, np.int32),
        np.empty(0, np.float32),
        (),
        FinishReason.ERROR,
        error,
    )
