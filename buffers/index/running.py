"""Groups that run: issued to a replica, given back, filled with rows and scores until they are finished.

Guaranteed: a row counts once, by (number, sample index, branch); what comes twice, too late or for a group
that is closed is ignored and counted; a batch is taken whole or, if a row in it is impossible, not at all. A
group that goes back keeps its number, its place and what was accepted of it. Pure, linear in what each call
is given. Nothing here decides how many groups may run, or what becomes of a finished one.
"""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import compress, repeat
from typing import Final

import numpy as np
import numpy.typing as npt

from streamrl.buffers.index.budget import ByteBudget
from streamrl.buffers.index.groups.group import Group, GroupState, Row, Tally
from streamrl.buffers.index.groups.handout import ScoringBoard
from streamrl.buffers.index.groups.suspects import is_suspect, is_to_blame
from streamrl.buffers.index.groups.verdicts import check_verdicts
from streamrl.buffers.rows.by_group import ByGroup
from streamrl.buffers.rows.records import FAILED_FINISHES, TRUNCATED_FINISH, QueueSettings, Records
from streamrl.buffers.rows.schema import FINISH_REASONS
from streamrl.clock import Clock
from streamrl.errors import DataError
from streamrl.types import FrameRef, Ticket

_ERROR = FINISH_REASONS.index("error")
_IS_BROKEN: Final = np.isin(np.arange(len(FINISH_REASONS)), list(FAILED_FINISHES))
_UNSAID = "no score"
_VERDICT_NAMES: Final = ("number", "sample_index", "branch", "attempt")
_NEVER: Final = int(np.iinfo(np.int64).max)


class RunningGroups:
    """The groups that are neither ready nor closed. It books into the tally, the budget and the board it is
    given.

    `finished` collects the groups whose rollouts are all there and scored; whoever settles them empties it.
    """

    def __init__(self, settings: QueueSettings, clock: Clock, tally: Tally, budget: ByteBudget) -> None:
        self._settings = settings
        self._clock = clock
        self._tally = tally
        self._budget = budget
        self._of_replica: dict[str, set[int]] = {}
        self.groups: dict[int, Group] = {}
        self.orphans: set[int] = set()
        """Numbers that wait to be issued again."""
        self.finished: list[Group] = []
        self.board = ScoringBoard()
        self.next_number = 0
        self.data_groups = 0
        """Turns of the data order that are over: the place of the next group whose prompt is the task's."""
        self.passed_over = 0
        """Those of them that no group got."""
        self.of_item: Counter[int] = Counter()
        """Running groups of each item of the data set."""
        self.suspects: set[int] = set()
        """Numbers of running groups that are generated alone."""
        self.ignored: Counter[str] = Counter()
        """`rows`, `tokens` and `scores` that came twice or too late."""
        self.scores: Counter[bool] = Counter()
        """Valid (True) and failed (False) scores so far."""
        self._held_at = -math.inf
        """When a look for overdue groups last found one with a replica."""
        self.accepted_tokens = 0
        self.num_samples = 0
        self.num_scored = 0
        self.num_reissued = 0

    @property
    def group_bytes(self) -> int:
        """The most that one group takes."""
        return self._settings.group_size * self._settings.rollout_bytes

    @property
    def num_sampled(self) -> int:
        """Groups of which all rollouts are there, and some scores are not."""
        return sum(len(group.samples) >= self._settings.group_size for group in self.groups.values())

    def book(self, replica: str, ticket: Ticket) -> None:
        """Book a ticket, given out now or read from the ledger. One of a closed group changes nothing."""
        group = self.groups.get(ticket.number)
        if group is not None:
            self.num_reissued += 1
        elif ticket.number >= self.next_number:
            group = self._new(ticket)
            self._tally.enter(group)
            self.use_up(ticket)
        else:
            return
        self._leave_replica(group)
        self.orphans.discard(group.number)
        self._is_of(group, ticket.data_index)
        group.attempt, group.last_step, group.replica = ticket.attempt, ticket.last_step, replica
        group.issued_at = self._clock.now()
        if not group.rows:
            group.floor = max(group.floor, ticket.attempt)
        self._of_replica.setdefault(replica, set()).add(group.number)

    def use_up(self, ticket: Ticket) -> None:
        """The number of a new group, and its place in the data order, are nobody else's."""
        self.next_number = ticket.number + 1
        self.data_groups += ticket.passed_over + (not ticket.submitted)
        self.passed_over += ticket.passed_over

    def _new(self, ticket: Ticket) -> Group:
        item, submitted = ticket.data_index, ticket.submitted
        position = item if submitted else self.data_groups + ticket.passed_over
        now = self._clock.now()
        return self._enter(Group(ticket.number, ticket.attempt, ticket.last_step, now, 0, position, item, submitted))

    def _enter(self, group: Group) -> Group:
        group.reserved = self.group_bytes
        self._budget.reserve(self.group_bytes)
        self.groups[group.number] = group
        self.of_item[group.item] += not group.submitted
        if is_suspect(group):
            self.suspects.add(group.number)
        return group

    def _is_of(self, group: Group, item: int) -> None:
        """A group that is issued again has another prompt where the data set was changed."""
        if group.item != item:
            self.of_item[group.item] -= 1
            self.of_item[item] += 1
            group.item = item

    def release(self, replica: str) -> list[int]:
        """Take back what `replica` has not finished, to be issued again; accepted rows stay."""
        numbers = sorted(self._of_replica.get(replica, ()))
        for number in numbers:
            self._leave_replica(self.groups[number])
        self.orphans.update(numbers)
        return numbers

    def has(self, replica: str) -> bool:
        """Whether this replica runs something."""
        return bool(self._of_replica.get(replica))

    def has_suspect(self, replica: str) -> bool:
        """Whether it runs a group that is to be alone there."""
        return bool(self.suspects and self.suspects & self._of_replica.get(replica, set()))

    def died(self, numbers: Sequence[int]) -> Group | None:
        """The replica that had these groups died; the one that is to blame. Of a past that is read back, some may be
        covered by a checkpoint."""
        groups = [self.groups[number] for number in numbers if number in self.groups]
        for group in groups:
            group.deaths += 1
        self.suspects.update(group.number for group in groups if is_suspect(group))
        alone = groups[0] if groups and len(numbers) == 1 else None
        return alone if alone is not None and is_to_blame(alone) else None

    def release_all(self) -> None:
        """Take back everything that some replica has not finished."""
        for replica in sorted(self._of_replica):
            self.release(replica)

    def withdraw(self, number: int, last_step: int) -> bool:
        """Discard the rows of a running group and have it issued again; whether it was running."""
        group = self.groups.get(number)
        if group is None:
            return False
        self.remove(group)
        self.begin_again(group, last_step)
        return True

    def begin_again(self, group: Group, last_step: int) -> None:
        """Discard the rows of a group that is no longer here, running or finished, and have it issued again.

        Its last step never falls: admission counts on it, and more groups would be due at a step than can be trained.
        """
        self._tally.discard_rows(group)
        self._budget.free(0, group.num_bytes)
        group.rows, group.sampled_tokens = {}, 0
        self._tally.move([group], GroupState.RUNNING)
        last_step = max(last_step, group.last_step)
        fresh = Group(group.number, group.attempt, last_step, self._clock.now(), 0, group.position, group.item)
        fresh.submitted, fresh.deaths, fresh.floor = group.submitted, group.deaths, group.attempt + 1
        self._enter(fresh)
        self.orphans.add(group.number)

    def remove(self, group: Group) -> None:
        """Take a group out: finished or dropped. Its rows stay booked, what was reserved is given back."""
        self._leave_replica(group)
        self.orphans.discard(group.number)
        self.suspects.discard(group.number)
        self.of_item[group.item] -= not group.submitted
        del self.groups[group.number]
        if group.num_scored < len(group.rows):
            self.board.done(group.rows.values())
        self.num_scored -= group.num_scored
        self.num_samples -= len(group.samples)
        self._budget.free(group.reserved, 0)
        group.reserved = 0

    def overdue(self, limit_s: float) -> list[tuple[int, str]]:
        """(number, replica) of groups that a replica has had for more than `limit_s`. With "" for the replica: those
        that wait for twice as long, for a replica while none had any, or for scores. Is asked again and again.

        A group that waits for replicas waits for what they have, which has a limit of its own: two that hang may keep
        two replicas for as long as it takes to give them up.
        """
        now = self._clock.now()
        if any(self._of_replica.values()):
            self._held_at = now
        return [
            (group.number, group.replica or "") for group in self.groups.values() if self._late(group, now, limit_s)
        ]

    def _late(self, group: Group, now: float, limit_s: float) -> bool:
        if group.replica is not None:
            return now - group.issued_at > limit_s
        waits_since = max(group.issued_at, self._held_at) if group.number in self.orphans else group.issued_at
        return now - waits_since > 2 * limit_s

    def _leave_replica(self, group: Group) -> None:
        if group.replica is not None:
            self._of_replica[group.replica].discard(group.number)
            group.replica = None

    def accept(self, frame: FrameRef, rows: Records) -> Records:
        """Take rows (type ACCEPTED) of a frame of completions; returns those that are new.

        Raises:
            DataError: a group or an attempt that was never issued, a sample index out of range, a count or a
                code that cannot be, or tokens of a version older than the ticket allows. Nothing is taken then.
        """
        if not len(rows):
            return rows
        by_group = ByGroup.of(rows["number"])
        if self._doubtful(rows, by_group):
            self._check(rows.tolist())
        # Of columns: a list of the records themselves, each a tuple of all its fields, takes three times as long.
        values = (rows[name].tolist() for name in ("row", "attempt", "prompt_tokens", "sampled_tokens", "oldest_step"))
        made = list(map(Row, repeat(frame), *values, (rows["finish"] == TRUNCATED_FINISH).tolist()))
        keys = list(zip(rows["sample_index"].tolist(), rows["branch"].tolist(), strict=True))
        share = -(-frame.length // frame.num_rows)
        kept: list[int] = []
        trimmed = 0
        for number, places in zip(by_group.numbers, by_group.places(), strict=True):
            group = self.groups.get(number)
            new = _put(group, places, keys, made) if group is not None else []
            if group is not None and new:
                trimmed += self._grows(group, {keys[place][0] for place in new}, len(new) * share)
            kept += new
        if len(kept) < len(rows):
            rows, made = self._without_ignored(rows, made, kept)
        tokens = int(rows["sampled_tokens"].sum(dtype=np.int64))
        self._budget.trim(trimmed, len(kept) * share)
        self._tally.add_rows(GroupState.RUNNING, len(kept), tokens)
        self.accepted_tokens += tokens
        self._have_scored(frame, rows, made)
        return rows

    def _without_ignored(self, rows: Records, made: list[Row], kept: list[int]) -> tuple[Records, list[Row]]:
        ignored = np.ones(len(rows), np.bool_)
        ignored[kept] = False
        self.ignored["rows"] += int(ignored.sum())
        self.ignored["tokens"] += int(rows["sampled_tokens"][ignored].sum(dtype=np.int64))
        return rows[~ignored], list(compress(made, ~ignored))

    def _have_scored(self, frame: FrameRef, names: Records, rows: list[Row]) -> None:
        """Put rows on the board. Rollouts that ended as abort or error have failed: nobody scores them."""
        broken = _IS_BROKEN[names["finish"]]
        if not broken.any():
            self.board.put(frame, names, rows)
            return
        self.board.put(frame, names[~broken], list(compress(rows, ~broken)))
        self.scores[False] += int(broken.sum())
        ends = zip(names["number"][broken].tolist(), names["finish"][broken].tolist(), strict=True)
        for (number, finish), row in zip(ends, compress(rows, broken), strict=True):
            # An abort is somebody's wish, and says nothing of the prompt.
            fault = "its generation ended as error" if finish == _ERROR else ""
            self._set_score(self.groups[number], row, False, float("nan"), fault)

    def _doubtful(self, rows: Records, by_group: ByGroup) -> bool:
        """Whether `_check` could refuse one of these rows: a look at all of them at once, that may be wrong only where
        it says yes."""
        sample = rows["sample_index"]
        least = min(rows[name].min(initial=0) for name in ("branch", "attempt", "prompt_tokens", "sampled_tokens"))
        most = rows["finish"].max(initial=0)
        if least < 0 or most >= len(FINISH_REASONS) or ((sample < 0) | (sample >= self._settings.group_size)).any():
            return True
        if by_group.numbers[0] < 0 or by_group.numbers[-1] >= self.next_number:
            return True
        sampled = np.where(rows["oldest_step"] < 0, _NEVER, rows["oldest_step"])
        latest = np.maximum.reduceat(rows["attempt"][by_group.order], by_group.starts).tolist()
        oldest = np.minimum.reduceat(sampled[by_group.order], by_group.starts).tolist()
        groups = map(self.groups.get, by_group.numbers)
        return any(
            group is not None and (attempt > group.attempt or step + self._settings.max_staleness < group.last_step)
            for group, attempt, step in zip(groups, latest, oldest, strict=True)
        )

    def _check(self, entries: list[tuple[int, ...]]) -> None:
        """Name the first row that cannot be, if there is one."""
        size, staleness = self._settings.group_size, self._settings.max_staleness
        for number, sample, branch, attempt, _, prompt, sampled, oldest, finish in entries:
            if not 0 <= number < self.next_number:
                raise DataError(f"group {number} was never issued; the next number is {self.next_number}")
            if not 0 <= sample < size:
                raise DataError(f"group {number}: sample index {sample} is not in 0..{size - 1}")
            if min(branch, attempt, prompt, sampled) < 0 or finish >= len(FINISH_REASONS):
                raise DataError(
                    f"group {number}, sample {sample}: branch {branch}, attempt {attempt}, {prompt} + {sampled} "
                    f"tokens, finish code {finish}: none may be negative, and codes end at {len(FINISH_REASONS) - 1}"
                )
            group = self.groups.get(number)
            if group is not None and attempt > group.attempt:
                raise DataError(f"group {number}, sample {sample}: attempt {attempt} was never issued")
            if group is None or attempt < group.floor or oldest < 0:
                continue
            if oldest + staleness < group.last_step:
                raise DataError(
                    f"group {number}, sample {sample}: tokens of step {oldest}, but its replica "
                    f"said that it served step {group.last_step - staleness}: it must report the "
                    "version that it samples with"
                )

    def _grows(self, group: Group, samples: set[int], num_bytes: int) -> int:
        """A group has got rows of these samples; returns how much less it has reserved."""
        num_before = len(group.samples)
        group.num_bytes += num_bytes
        group.samples |= samples
        num_new = len(group.samples) - num_before
        self.num_samples += num_new
        trimmed = min(group.reserved, num_new * self._settings.rollout_bytes)
        group.reserved -= trimmed
        if num_new and len(group.samples) == self._settings.group_size:
            self._leave_replica(group)
            self.orphans.discard(group.number)
        return trimmed

    def score(
        self,
        rows: Records,
        valid: npt.NDArray[np.bool_],
        reward: npt.NDArray[np.float64],
        components: npt.NDArray[np.float64] | None = None,
        reason: Sequence[str] | None = None,
    ) -> Records:
        """Take verdicts (type SCORED); returns those that are new. components, reason: as in `ScoredRows`.

        Raises:
            DataError: a valid score that is not finite, or lacks a component. Nothing is taken then.
        """
        check_verdicts(rows, valid, reward, components, self._settings.components)
        kept: list[int] = []
        scored: list[Row] = []
        numbers, samples, branches, attempts = (rows[name].tolist() for name in _VERDICT_NAMES)
        keys = zip(samples, branches, strict=True)
        verdicts = zip(numbers, keys, attempts, valid.tolist(), reward.tolist(), strict=True)
        for place, (number, key, attempt, is_valid, value) in enumerate(verdicts):
            group = self.groups.get(number)
            row = group.rows.get(key) if group is not None else None
            if group is None or row is None or row.scored or row.attempt != attempt:
                self.ignored["scores"] += 1
                continue
            fault = "" if is_valid else (reason[place] if reason is not None else "") or _UNSAID
            self._set_score(group, row, is_valid, value, fault)
            scored.append(row)
            kept.append(place)
        if components is not None and self._settings.components:
            for row, values in zip(scored, components[kept].tolist(), strict=True):
                row.components = tuple(values)
        self.board.done(scored)
        num_valid = int(valid[kept].sum())
        self.scores.update({True: num_valid, False: len(scored) - num_valid})
        return rows if len(kept) == len(rows) else rows[kept]

    def _set_score(self, group: Group, row: Row, valid: bool, reward: float, fault: str) -> None:
        row.scored, row.valid, row.fault = True, valid, fault
        if valid:
            row.reward = reward
        group.num_scored += 1
        self.num_scored += 1
        if len(group.samples) == self._settings.group_size and group.num_scored == len(group.rows):
            self.finished.append(group)


def _put(group: Group, places: list[int], keys: list[tuple[int, int]], made: list[Row]) -> list[int]:
    """Give a group its rows of a frame; the places of those that are new and not too late."""
    rows, floor = group.rows, group.floor
    new = []
    for place in places:
        row = made[place]
        if row.attempt >= floor and rows.setdefault(keys[place], row) is row:
            group.sampled_tokens += row.sampled_tokens
            new.append(place)
    return new
