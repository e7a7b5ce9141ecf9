"""The row that was sampled longest ago, among the rows of some groups. Pure."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from streamrl.buffers.index.groups.group import Group
from streamrl.buffers.rows.records import OldestRow

_NEVER: Final = int(np.iinfo(np.int64).max)


def oldest_row(groups: Iterable[Group]) -> OldestRow | None:
    """The row of the oldest version, the lowest group first; None without any. Rows without a sampled token have no
    version and come last."""
    rows = (
        (_NEVER if row.oldest_step < 0 else row.oldest_step, group.number, *key, row)
        for group in groups
        for key, row in group.rows.items()
    )
    found = min(rows, key=lambda entry: entry[:4], default=None)
    if found is None:
        return None
    _, number, sample, branch, row = found
    return OldestRow(
        number=number, sample_index=sample, branch=branch, oldest_step=row.oldest_step, frame=row.frame, row=row.row
    )
