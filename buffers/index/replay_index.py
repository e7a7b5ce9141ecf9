"""The replay index: what every issued group is doing, decided without I/O.

    issue -> RUNNING -> READY -> LEASED -> TRAINED      the rollouts of a running group:
                |         |  ^               |          PENDING -> COMPLETE -> SCORED
                v         v  +---------------+
               DROPPED          go back

Guaranteed: the books close at every moment (issued = running + ready + leased + trained + dropped; the same
for the tokens accepted); a group is dropped only with a reason, and gives its place and its bytes back;
admission and the choice of a batch follow `streamrl.scheduling.staleness`. The index knows no files, no event loop, and
of replicas only names; the clock only dates issues.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from streamrl.buffers.index.budget import ByteBudget
from streamrl.buffers.index.groups.group import Group, GroupState, Tally
from streamrl.buffers.index.groups.group_filter import REWARD_FAILED, GroupFilter
from streamrl.buffers.index.groups.oldest import oldest_row
from streamrl.buffers.index.groups.quarantine import Quarantine, fault_of
from streamrl.buffers.index.groups.recent import RecentGroups
from streamrl.buffers.index.groups.suspects import REPLICA_DIED
from streamrl.buffers.index.issuing import Issuing
from streamrl.buffers.index.lost_groups import LostGroups
from streamrl.buffers.index.measuring import MeasuredPrompts
from streamrl.buffers.index.prompt_sources import PromptSources
from streamrl.buffers.index.revisions import Revisions
from streamrl.buffers.index.running import RunningGroups
from streamrl.buffers.index.stepping import StepBooks
from streamrl.buffers.index.submitted.offered import OfferedTrajectories
from streamrl.buffers.rows.records import (
    DataOrder,
    Found,
    Lease,
    OldestRow,
    QueueCounts,
    QueueSettings,
    Records,
    UnscoredFrame,
)
from streamrl.clock import Clock
from streamrl.scheduling.staleness import Admission, Candidate
from streamrl.types import FrameRef, Ticket


class ReplayIndex:
    """Issue, accept, score, lease, commit.

    Example:
        (ticket,) = index.issue("replica-0", serving_step=0, room=1)
        index.accept(frame, rows.packed())
        index.score(scored.packed(), scored.valid, scored.reward)
        lease = index.lease(0)
        index.commit(0)
    """

    def __init__(self, settings: QueueSettings, order: DataOrder, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._admission = Admission(
            settings.max_staleness, settings.groups_per_step, settings.total_groups, settings.lead
        )
        self._budget = ByteBudget(settings.byte_budget)
        self._tally = Tally()
        self._running = RunningGroups(settings, clock, self._tally, self._budget)
        self._steps = StepBooks(settings, self._tally, self._budget)
        self._dropped: Counter[str] = Counter()
        self._filter = GroupFilter(settings)
        self.revisions = Revisions(settings, self._running, self._steps, self._filter.drop_reason, self._drop_by_rule)
        self.quarantine = Quarantine(settings.quarantine_after)
        sources = PromptSources(settings, order, self._running, self.quarantine)
        self._issuing = Issuing(settings, self._admission, self._running, sources, self._tally, self._budget)
        self.submissions = sources.submissions
        self.measured = MeasuredPrompts(sources.curriculum, order)
        self._curriculum = sources.curriculum
        self.recent = RecentGroups()
        self.offered = OfferedTrajectories()
        self._unrecorded: dict[int, str] = {}
        """Groups dropped by a rule of its own, with the reason, of which no record is known yet."""
        self.rows_withdrawn = 0
        """Rows discarded because the data set was changed."""
        self.lost = LostGroups(self._running, self._steps, self._admission, self.submissions)

    @property
    def next_step(self) -> int:
        """The step whose batch comes next."""
        return self._steps.next_step

    @property
    def components(self) -> tuple[str, ...]:
        """Names of what a valid score has a number for beside its reward."""
        return self._settings.components

    @property
    def checkpoint_wanted(self) -> bool:
        """Whether trained rows, which only a checkpoint lets go, leave too little room for the next step."""
        step_bytes = self._settings.groups_per_step * self._running.group_bytes
        return self._budget.wants_checkpoint(self._steps.trained_bytes, step_bytes)

    @property
    def lacks_scores(self) -> bool:
        """Whether scores are all that a batch still needs."""
        ready = self._tally.groups[GroupState.READY]
        return ready < self._settings.groups_per_step <= ready + self._running.num_sampled

    def issue(self, replica: str, serving_step: int, room: int) -> list[Ticket]:
        """Groups for a replica; arguments and errors: `Issuing.issue`."""
        return self._issuing.issue(replica, serving_step, room)

    @property
    def waits_for_rows(self) -> bool:
        """Whether a replica may get a group because rows or scores came."""
        return self._issuing.waits_for_rows

    def restore_issue(self, replica: str, ticket: Ticket) -> None:
        """Book a ticket that the ledger has."""
        self._issuing.restore(replica, ticket)

    def skip(self, ticket: Ticket) -> None:
        """The same of a group of a covered step: it costs no memory any more."""
        self._issuing.skip(ticket)

    def accept(self, frame: FrameRef, rows: Records) -> Records:
        """Take rows (type ACCEPTED) of a frame of completions; returns those that are new.

        Raises:
            DataError: a row that cannot be; nothing is taken then.
        """
        kept = self._running.accept(frame, rows)
        self._settle()
        return kept

    def unscored(self, scorer: str, max_rows: int) -> list[UnscoredFrame]:
        """Hand out at most `max_rows` rows to a scorer."""
        return self._running.board.take(scorer, max_rows)

    def requeue_unscored(self, scorer: str) -> int:
        """Take back what a lost scorer had; returns how many rows."""
        return self._running.board.give_back(scorer)

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
            DataError: a valid score that is not finite, or lacks a component; nothing is taken then.
        """
        kept = self._running.score(rows, valid, reward, components, reason)
        self._settle()
        return kept

    def _settle(self) -> None:
        """A finished group is ready, or dropped by what `group_filter` says."""
        finished, self._running.finished = self._running.finished, []
        kept: list[Group] = []
        for group in finished:
            self.recent.finished(group)
            self.measured.finished(group)
            if reason := self._filter.drop_reason(group):
                if reason == REWARD_FAILED and not group.submitted and (fault := fault_of(group)):
                    self.quarantine.failed(group.item, group.number, fault)
                self._drop_by_rule(group, reason)
            else:
                self._running.remove(group)
                kept.append(group)
                if group.submitted:
                    self.submissions.finished(group.position, group)
        self._steps.add(kept)

    def _drop_by_rule(self, group: Group, reason: str) -> None:
        self.drop(group.number, reason)
        self._unrecorded[group.number] = reason

    def died(self, numbers: Sequence[int]) -> Group | None:
        """The replica that had these groups has died: the group that is to blame and was given up for it."""
        blamed = self._running.died(numbers)
        if blamed is not None:
            if not blamed.submitted:
                why = f"{blamed.deaths} replicas died while they generated it, the last with nothing else to do"
                self.quarantine.failed(blamed.item, blamed.number, why, at_once=True)
            self._drop_by_rule(blamed, REPLICA_DIED)
        return blamed

    def pop_dropped(self) -> dict[str, list[int]]:
        """The groups that a rule of the index dropped since the last call, by reason; without those that `drop` was
        told of since."""
        unrecorded, self._unrecorded = self._unrecorded, {}
        return {
            reason: [number for number, why in unrecorded.items() if why == reason]
            for reason in dict.fromkeys(unrecorded.values())
        }

    def begin_filtering(self) -> None:
        """The past is recovered: groups that are filtered count from here."""
        self._filter.begin()

    def drop(self, number: int, reason: str) -> bool:
        """Drop a running or ready group and give its place back; whether it was one."""
        self._unrecorded.pop(number, None)
        group = self._running.groups.get(number)
        if group is not None:
            self._running.remove(group)
        else:
            group = self._steps.take_out(number)
        if group is None:
            return False
        self._budget.free(0, group.num_bytes)
        self._tally.move([group], GroupState.DROPPED)
        self._dropped[reason] += 1
        if group.submitted:
            self.submissions.dropped(group.position, reason)
        return True

    def withdraw(self, number: int, step: int) -> bool:
        """Discard what a running group has and have it issued again, as if under the version of `step`."""
        return self._running.withdraw(number, self._admission.last_step(step))

    def withdraw_begun(self, step: int) -> list[int]:
        """The same for every running group that has rows already; their numbers. The rows are counted."""
        begun = [number for number, group in self._running.groups.items() if group.rows]
        self.rows_withdrawn += sum(len(self._running.groups[number].rows) for number in begun)
        for number in begun:
            self.withdraw(number, step)
        return begun

    def release(self, replica: str) -> list[int]:
        """Take back what a lost replica has not finished."""
        return self._running.release(replica)

    def release_all(self) -> None:
        """Take back what any replica has not finished."""
        self._running.release_all()

    def lease(self, step: int) -> Lease | None:
        """The batch of `step`, or None as long as it has to wait.

        Raises:
            ComponentError: not the next step, or groups are filtered and none is kept.
        """
        lease = self._steps.lease(step, self._last_steps)
        if lease is None:
            self._filter.check(step)
        return lease

    def late(self, step: int) -> list[int]:
        """The running groups that hold up the batch of `step`."""
        return self._steps.late(step, self._candidates)

    def _last_steps(self) -> Iterator[int]:
        return map(attrgetter("last_step"), self._running.groups.values())

    def _candidates(self) -> list[Candidate]:
        return [group.candidate for group in self._running.groups.values()]

    def commit(self, step: int) -> list[int] | None:
        """Book the lease of `step` as trained; its groups, or None if it was booked before."""
        return self._steps.commit(step)

    def cover(self, step: int) -> None:
        """A durable checkpoint holds every step below `step`."""
        for group in self._steps.cover(step):
            if group.submitted:
                self.submissions.covered(group.position)

    def go_to(self, step: int) -> None:
        """Resume from a checkpoint of `step`: steps trained after it take the same groups again."""
        self._steps.go_to(step)

    def plan(self, step: int, numbers: list[int]) -> None:
        """Have `step` take these ready groups again."""
        self._steps.plan(step, numbers)

    def start_at(self, step: int, groups: int) -> None:
        """Start with `groups` groups trained at steps before `step` and covered by a checkpoint."""
        self._steps.start_at(step)
        self._tally.groups[GroupState.TRAINED] += groups

    def add_trained(self, rows: int, tokens: int) -> None:
        """Book rows of covered steps."""
        self._running.accepted_tokens += tokens
        self._tally.rows[GroupState.TRAINED] += rows
        self._tally.tokens[GroupState.TRAINED] += tokens

    def add_dropped(self, rows: int, tokens: int) -> None:
        """Book rows of covered steps that were discarded before."""
        self._running.accepted_tokens += tokens
        self._tally.rows[GroupState.DROPPED] += rows
        self._tally.tokens[GroupState.DROPPED] += tokens

    def replica_of(self, number: int) -> str:
        """Who runs a group; "" if nobody does."""
        group = self._running.groups.get(number)
        return "" if group is None else group.replica or ""

    def overdue(self, limit_s: float) -> list[tuple[int, str]]:
        """As `RunningGroups.overdue`."""
        return self._running.overdue(limit_s)

    def oldest(self) -> OldestRow | None:
        """The accepted row of the oldest version, the lowest group first, among those that wait; None without any.

        Rows without a sampled token have no version and come last. Looks at every row that waits.
        """
        return oldest_row(chain(self._running.groups.values(), self._steps.waiting()))

    def found(self, step: int, data_changed: bool) -> Found:
        """What a learner that begins at `step` finds."""
        steps, rows = self._steps.again()
        counts, orphans = self.counts(), self._running.orphans
        size = self._settings.group_size
        return Found(
            step=step,
            steps_again=steps,
            rows_again=rows,
            rows_waiting=counts.rows_waiting - rows,
            groups_again=len(orphans),
            rollouts_again=sum(size - len(self._running.groups[number].samples) for number in orphans),
            data_changed=data_changed,
            rows_discarded=self.rows_withdrawn if data_changed else 0,
        )

    def counts(self, incarnation: int = 0) -> QueueCounts:
        """The books, now."""
        groups, rows, tokens = self._tally.groups, self._tally.rows, self._tally.tokens
        running, state = self._running, GroupState
        queued = tokens[state.RUNNING] + tokens[state.READY]
        return QueueCounts(
            next_step=self._steps.next_step,
            incarnation=incarnation,
            groups_issued=running.next_number,
            groups_running=groups[state.RUNNING],
            groups_orphaned=len(running.orphans),
            groups_ready=groups[state.READY],
            groups_leased=groups[state.LEASED],
            groups_trained=groups[state.TRAINED],
            groups_dropped=dict(self._dropped),
            groups_reissued=running.num_reissued,
            groups_lost=self.lost.groups,
            rows_pending=groups[state.RUNNING] * self._settings.group_size - running.num_samples,
            rows_complete=rows[state.RUNNING] - running.num_scored,
            rows_scored=running.num_scored,
            rows_ready=rows[state.READY],
            rows_leased=rows[state.LEASED],
            rows_trained=rows[state.TRAINED],
            rows_dropped=rows[state.DROPPED],
            rows_ignored=running.ignored["rows"],
            rows_lost=self.lost.rows,
            rows_unscored=self._running.board.num_waiting,
            scores_ok=running.scores[True],
            scores_failed=running.scores[False],
            tokens_accepted=running.accepted_tokens,
            tokens_queued=queued,
            tokens_leased=tokens[state.LEASED],
            tokens_trained=tokens[state.TRAINED],
            tokens_dropped=tokens[state.DROPPED],
            tokens_ignored=running.ignored["tokens"],
            bytes_reserved=self._budget.reserved,
            bytes_held=self._budget.held,
            bytes_trained=self._steps.trained_bytes,
            byte_budget=self._settings.byte_budget,
            checkpoint_wanted=self.checkpoint_wanted,
            prompts_submitted=len(self.submissions),
            prompts_waiting=self.submissions.num_waiting,
            trajectories_offered=len(self.offered),
            trajectories_waiting=self.offered.num_waiting,
            prompts_quarantined=len(self.quarantine),
            prompts_passed_over=running.passed_over,
            prompts_resting=len(self._curriculum),
        )
