"""A book of a run that is kept by nobody of it: what the records of its ledger say, counted anew.

None of the queue's own counts is believed.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from streamrl.buffers.ledger.ledger import read_ledger
from streamrl.buffers.ledger.records import Accepted, Dropped, Issued, Step
from streamrl.buffers.rows.records import ACCEPTED, unpack


class Book:
    """See the module. size: rollouts of a group."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self._size = size
        self.records = [record for file in read_ledger(folder / "queue/ledger") for record in file.records]
        self.trained = {record.step: record.numbers for record in self.records if isinstance(record, Step)}
        self.accepted: Counter[tuple[int, int]] = Counter()
        self.lengths: dict[tuple[int, int], int] = {}
        for record in self.records:
            if isinstance(record, Accepted):
                rows = unpack(ACCEPTED, record.rows)
                keys = list(zip(rows["number"].tolist(), rows["sample_index"].tolist(), strict=True))
                self.accepted.update(keys)
                self.lengths.update(zip(keys, rows["sampled_tokens"].tolist(), strict=True))

    def wanted(self) -> set[tuple[int, int]]:
        """Group and sample of everything that was trained."""
        return {
            (number, sample) for numbers in self.trained.values() for number in numbers for sample in range(self._size)
        }

    def check(self, steps: int, *, groups_per_step: int, staleness: int) -> None:
        """These steps were trained and told of, none with a row that is too old; and as `check_ledger` says."""
        self.check_ledger(steps, groups_per_step=groups_per_step, staleness=staleness)
        assert self.told(staleness) == list(range(1, steps + 1))

    def check_ledger(self, steps: int, *, groups_per_step: int, staleness: int) -> None:
        """These steps were trained, each of whole groups, each group once, and none was passed over."""
        times = Counter(number for numbers in self.trained.values() for number in numbers)
        assert sorted(self.trained) == list(range(steps)), "a step is missing from the history"
        assert set(times.values()) == {1}, "a group was trained twice"
        issued = {ticket.number for one in self.records if isinstance(one, Issued) for ticket in one.tickets}
        assert issued == set(range(len(issued))), "a prompt was skipped"
        assert not any(isinstance(record, Dropped) for record in self.records)
        assert set(self.accepted.values()) == {1}, "a rollout was accepted twice"
        assert self.wanted() <= set(self.accepted), "a group was trained without all its rollouts"
        # No group is passed over: what is not trained is among the newest, as far as admission lets them run ahead.
        left = sorted(issued - set(times))
        assert not left or left[0] >= (steps - staleness - 1) * groups_per_step

    def told(self, staleness: int) -> list[int]:
        """The steps of the metrics, whose rows are no older than that."""
        made = self.lines()
        assert max(line["staleness/max"] for line in made) <= staleness
        return [line["step"] for line in made]

    def lines(self) -> list[dict[str, Any]]:
        """Of the metrics, those that are steps."""
        lines = [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if "loss/policy" in line]
