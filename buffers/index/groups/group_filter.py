"""What becomes of a group whose rollouts are all there and scored: it is kept, or dropped with a reason. Pure.

Guaranteed: the answer depends on the group's verdicts alone, so a recovery comes to the same one. It counts how many
groups were filtered with none kept in between, and says when there is no point in going on.
"""

from typing import Final

from streamrl.algorithms.group_filter import TOO_EASY, TOO_HARD, TRUNCATED, ZERO_VARIANCE, reason_to_filter
from streamrl.buffers.index.groups.group import Group
from streamrl.buffers.rows.records import QueueSettings
from streamrl.errors import ComponentError

REWARD_FAILED: Final = "reward_failed"
"""Reason of a group with fewer than two valid scores, or without that of the greedy sample: nothing to compare."""


_CHANGE_TASK = (
    "The task is too easy or too hard for the model: raise rollout.group_size, widen learner.filter.low and high, or "
    "change the task"
)
_WAY_OUT: Final = dict.fromkeys((ZERO_VARIANCE, TOO_HARD, TOO_EASY), _CHANGE_TASK) | {
    TRUNCATED: "Rollouts come to no end: raise rollout.sampling.max_new_tokens, or set "
    "learner.overlong.mask_truncated = false"
}


class GroupFilter:
    """Example:
    reason = group_filter.drop_reason(group)      # "" for a group that is kept
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._in_a_row = 0
        self._last_reason = ""

    def drop_reason(self, group: Group) -> str:
        """Why a finished group is dropped, or "": it is kept."""
        rows, greedy = group.valid_rows(), self._settings.greedy_sample
        samples = {sample for sample, _ in rows}
        if len(samples) < min(2, self._settings.group_size) or (greedy is not None and greedy not in samples):
            return REWARD_FAILED
        valid, trained = rows.values(), [row for (sample, _), row in rows.items() if sample != greedy]
        if self._settings.mask_truncated and all(row.truncated for row in trained):
            reason = TRUNCATED
        else:
            components = [row.components for row in valid] if self._settings.components else None
            reason = reason_to_filter([row.reward for row in valid], self._settings.filter, components)
        self._in_a_row = self._in_a_row + 1 if reason else 0
        self._last_reason = reason
        return reason

    def begin(self) -> None:
        """Count from 0: what an earlier process filtered is no reason for this one not to try."""
        self._in_a_row = 0

    def check(self, step: int) -> None:
        """Raise ComponentError if so many groups were filtered in a row that the batch of `step` may never fill."""
        limit = self._settings.filter.limit
        if self._in_a_row >= limit:
            raise ComponentError(
                f"the batch of step {step} does not fill: the last {self._in_a_row} groups were all filtered, the "
                f"latest as {self._last_reason}, and learner.filter.limit is {limit}. {_WAY_OUT[self._last_reason]}; a "
                "higher limit waits for longer"
            )
