"""Who may start, and what may be trained: the two pure rules that bound staleness.

Guaranteed, if every group is admitted by `Admission` and every batch is chosen by `select_batch`: no group is
trained after its `last_step`, nothing has to be discarded for age, and the stream never locks up, in whatever
order groups end or fail. Everything is counted in groups. Nothing here knows of time, replicas, rows or
tokens; the counts and the candidates are arguments.

A learner step is named by the weights the learner holds: the batch chosen at step s turns step s into s + 1,
and step 0 trains on the initial model.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from streamrl.errors import ComponentError, ConfigError

Late = Literal["wait", "drop", "reissue"]
"""What to do with a running group that the batch would have to wait for (`late_groups` names them).

wait: hold the batch until it is ready. drop: cancel it, counted. reissue: cancel it and give the same group
out again as its next attempt, with a later `last_step`, counted.
"""


class Candidate(NamedTuple):
    """A group that is not trained yet. `last_step` is the last step at which it may be."""

    number: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Admission:
    """How many groups may start, so that first come, first trained keeps every group inside the bound.

    groups_per_step: groups that one learner step trains. total_groups: groups that the run trains in all, or
    None for an endless one. lead: batches that may wait or run ahead of the learner, 1 or more; None for as many as
    the bound allows. Where generation is fast a small lead keeps the data fresher than the bound asks for.

    Example:
        >>> admission = Admission(max_staleness=2, groups_per_step=8)
        >>> admission.capacity(serving_step=0, trained=0, waiting=0, running=4)
        20
    """

    max_staleness: int
    groups_per_step: int
    total_groups: int | None = None
    lead: float | None = None

    def __post_init__(self) -> None:
        if self.max_staleness < 0:
            raise ConfigError(f"max_staleness is {self.max_staleness}; it must be 0 or more")
        if self.groups_per_step < 1:
            raise ConfigError(f"groups_per_step is {self.groups_per_step}; it must be 1 or more")
        if self.total_groups is not None and self.total_groups < 0:
            raise ConfigError(f"total_groups is {self.total_groups}; it must be 0 or more, or None")
        if self.lead is not None and self.lead < 1:
            raise ConfigError(f"lead is {self.lead}; it must be 1 batch or more, or a batch could never fill")

    def capacity(self, *, serving_step: int, trained: int, waiting: int, running: int) -> int:
        """Groups that a replica serving `serving_step` may start now (design, section 6); never negative.

        trained: groups in committed batches and in the leased one. waiting: complete or scored, not leased.
        running: issued and not complete. A group that was lost for any reason is in none of the three: that
        gives its place back.

        The rule: by the end of step `last_step(serving_step)` the learner will have trained
        `(last_step + 1) * groups_per_step` groups, so one more may start only while all that were started
        before it and are still to be counted number less.
        """
        started = trained + waiting + running
        room = (self.last_step(serving_step) + 1) * self.groups_per_step - started
        if self.total_groups is not None:
            room = min(room, self.total_groups - started)
        if self.lead is not None:
            room = min(room, int(self.lead * self.groups_per_step) - waiting - running)
        return max(0, room)

    def last_step(self, serving_step: int) -> int:
        """The last step at which a group that starts under `serving_step` may be trained."""
        return serving_step + self.max_staleness


def select_batch(
    step: int, groups_per_step: int, ready: Iterable[Candidate], running: Iterable[Candidate]
) -> list[int] | None:
    """The numbers of the groups to train at `step`, ascending, or None: wait.

    The oldest ready groups, by (last_step, number), and only if the groups left over (ready or running) can
    still all be trained in time: for each d >= step, those with `last_step <= d` number at most
    `(d - step) * groups_per_step`. Otherwise a running group has to come first. O(n log n) for n groups.

    Raises:
        ComponentError: the ready groups alone cannot all be trained in time, so waiting would never end.
            `Admission` makes that impossible; a caller that sees it has miscounted.
    """
    oldest_first = _oldest_first(ready)
    _refuse_hopeless(step, groups_per_step, oldest_first)
    if len(oldest_first) < groups_per_step:
        return None
    taken, left = oldest_first[:groups_per_step], oldest_first[groups_per_step:]
    if not _in_time(step, groups_per_step, _oldest_first([*left, *running])):
        return None
    return sorted(candidate.number for candidate in taken)


def late_groups(step: int, groups_per_step: int, ready: Iterable[Candidate], running: Iterable[Candidate]) -> list[int]:
    """The numbers of the running groups that hold up the batch of `step`, oldest first.

    The fewest whose leaving lets `select_batch` answer now. Empty while there are not enough ready groups:
    then nothing is late, there is only too little. `late = drop` or `reissue` takes these out of `running`.
    """
    oldest_first = _oldest_first(ready)
    if len(oldest_first) < groups_per_step:
        return []
    in_flight = _oldest_first(running)
    unfinished = set(in_flight)
    late: list[int] = []
    kept: deque[Candidate] = deque()
    left = 0
    for candidate in _oldest_first([*oldest_first[groups_per_step:], *in_flight]):
        left += 1
        if candidate in unfinished:
            kept.append(candidate)
        if kept and left > (candidate.last_step - step) * groups_per_step:
            late.append(kept.popleft().number)
            left -= 1
    return late


def staleness_of(learner_step: int, oldest_step: int) -> int:
    """Steps between the learner's weights and those of a row's oldest sampled token, at least 0."""
    return max(0, learner_step - oldest_step)


def _oldest_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: (candidate.last_step, candidate.number))


def _in_time(step: int, groups_per_step: int, left: list[Candidate]) -> bool:
    """Whether groups left over after the batch of `step`, oldest first, fit into the batches that follow.

    The i-th of them (from 0) is trained at step `step + 1 + i // groups_per_step` at the earliest.
    """
    return all(index < (candidate.last_step - step) * groups_per_step for index, candidate in enumerate(left))


def _refuse_hopeless(step: int, groups_per_step: int, oldest_first: list[Candidate]) -> None:
    """Raise if ready groups cannot be trained in time even when nothing else is in the way."""
    hopeless = [
        candidate
        for index, candidate in enumerate(oldest_first)
        if candidate.last_step < step + index // groups_per_step
    ]
    if hopeless:
        first = hopeless[0]
        raise ComponentError(
            f"staleness: at step {step}, {len(hopeless)} of {len(oldest_first)} ready groups cannot be "
            f"trained in time any more (first: group {first.number}, last step {first.last_step}). More were admitted "
            f"than {groups_per_step} a step can train: drop them with a reason, or correct the counts given "
            "to Admission.capacity"
        )
