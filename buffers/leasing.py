"""From groups to the columns of a lease: which rows, where they lie, in which order. Pure."""

from collections.abc import Iterable

import numpy as np

from buffers.group import Group
from buffers.records import Lease
from streamrl.types import FrameRef


def build_lease(step: int, groups: Iterable[Group]) -> Lease:
    """All rows of the groups, sorted by (group number, sample index, branch), however they arrived."""
    rows = [
        (group.number, sample, branch, row)
        for group in sorted(groups, key=lambda group: group.number)
        for (sample, branch), row in sorted(group.rows.items(), key=lambda item: item[0])
    ]
    places: dict[FrameRef, int] = {}
    # Rows of one frame share its reference nearly always: a look at the object saves hashing its fields.
    seen: dict[int, int] = {}
    frame_index = []
    for *_, row in rows:
        place = seen.get(id(row.frame))
        if place is None:
            place = seen[id(row.frame)] = places.setdefault(row.frame, len(places))
        frame_index.append(place)
    return Lease(
        step=step,
        frames=list(places),
        frame_index=np.array(frame_index, np.int32),
        row=np.array([row.row for *_, row in rows], np.int32),
        group=np.array([number for number, *_ in rows], np.int64),
        sample_index=np.array([sample for _, sample, *_ in rows], np.int64),
        branch=np.array([branch for *_, branch, _ in rows], np.int32),
        rewards=np.array([row.reward for *_, row in rows], np.float64),
        valid=np.array([row.valid for *_, row in rows], np.bool_),
        num_tokens=np.array([row.prompt_tokens + row.sampled_tokens for *_, row in rows], np.int64),
        sampled_tokens=np.array([row.sampled_tokens for *_, row in rows], np.int64),
        oldest_step=np.array([row.oldest_step for *_, row in rows], np.int64),
    )
