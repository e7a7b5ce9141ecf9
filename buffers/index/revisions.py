"""Verdicts of another reward in the place of those that rows have, and what becomes of their groups.

Guaranteed: a row that has no verdict yet gets none here, so a group that runs is finished by the run's own scores
alone; a group that a step takes again stays in it; any other ready group is kept or dropped by the newest verdicts,
once all of them are in. Pure.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from streamrl.buffers.index.groups.group import Group
from streamrl.buffers.index.groups.verdicts import check_verdicts
from streamrl.buffers.index.running import RunningGroups
from streamrl.buffers.index.stepping import StepBooks
from streamrl.buffers.rows.records import QueueSettings, Records


class Revisions:
    """judge: why a finished group is dropped, or "". drop: drops it.

    Example:
        revisions.take(rows, valid, reward, components, reason)      # each record of a rescoring
        revisions.settle()                                           # once the steps are planned
    """

    def __init__(
        self,
        settings: QueueSettings,
        running: RunningGroups,
        steps: StepBooks,
        judge: Callable[[Group], str],
        drop: Callable[[Group, str], None],
    ) -> None:
        self._settings = settings
        self._running = running
        self._steps = steps
        self._judge = judge
        self._drop = drop
        self._revised: set[int] = set()

    def take(
        self,
        rows: Records,
        valid: npt.NDArray[np.bool_],
        reward: npt.NDArray[np.float64],
        components: npt.NDArray[np.float64] | None = None,
        reason: Sequence[str] | None = None,
    ) -> None:
        """Verdicts (type SCORED) on rows that have one; arguments and errors: `RunningGroups.score`."""
        check_verdicts(rows, valid, reward, components, self._settings.components)
        scores = self._running.scores
        for place, told in enumerate(rows):
            number = int(told["number"])
            group = self._running.groups.get(number) or self._steps.ready(number)
            row = group.rows.get((int(told["sample_index"]), int(told["branch"]))) if group is not None else None
            if row is None or not row.scored or row.attempt != told["attempt"]:
                self._running.ignored["scores"] += 1
                continue
            scores.subtract({row.valid: 1})
            row.valid, row.reward = bool(valid[place]), float(reward[place])
            row.fault = "" if row.valid or reason is None else reason[place]
            row.components = () if components is None else tuple(components[place].tolist())
            scores.update({row.valid: 1})
            self._revised.add(number)

    def settle(self) -> None:
        """AuxiliaryModel the ready groups with new verdicts that no step takes again."""
        for number in sorted(self._revised):
            group = self._steps.ready(number)
            if group is not None and (reason := self._judge(group)):
                self._drop(group, reason)
        self._revised.clear()
