"""From groups to the columns of a lease: which rows, where they lie, in which order. Pure."""

from collections.abc import Collection, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from streamrl.buffers.index.groups.group import Group, Row
from streamrl.buffers.rows.records import Lease
from streamrl.types import FrameRef, IntArray


def build_lease(step: int, groups: Collection[Group], num_components: int = 0) -> Lease:
    """All rows of the groups, sorted by (group number, sample index, branch), however they arrived."""
    ordered = sorted(groups, key=lambda group: group.number)
    keys = [sorted(group.rows) for group in ordered]
    rows = [group.rows[key] for group, of_group in zip(ordered, keys, strict=True) for key in of_group]
    sample_index, branch = np.fromiter(chain.from_iterable(chain.from_iterable(keys)), np.int64).reshape(-1, 2).T
    sampled_tokens = np.array([row.sampled_tokens for row in rows], np.int64)
    frames, frame_index = _frames_of(rows)
    return Lease(
        step=step,
        frames=frames,
        frame_index=frame_index,
        row=np.array([row.row for row in rows], np.int32),
        group=np.repeat(np.array([group.number for group in ordered], np.int64), [len(of_group) for of_group in keys]),
        sample_index=sample_index.copy(),
        branch=branch.astype(np.int32),
        rewards=np.array([row.reward for row in rows], np.float64),
        components=_components(rows, num_components),
        valid=np.array([row.valid for row in rows], np.bool_),
        num_tokens=np.array([row.prompt_tokens for row in rows], np.int64) + sampled_tokens,
        sampled_tokens=sampled_tokens,
        truncated=np.array([row.truncated for row in rows], np.bool_),
        oldest_step=np.array([row.oldest_step for row in rows], np.int64),
    )


def _components(rows: Sequence[Row], count: int) -> npt.NDArray[np.float64]:
    """float64 [N, C]; NaN where the score failed."""
    failed = (np.nan,) * count
    values = [row.components if row.valid else failed for row in rows] if count else []
    return np.array(values, np.float64).reshape(len(rows), count)


def _frames_of(rows: Sequence[Row]) -> tuple[list[FrameRef], IntArray]:
    """The frames that hold the rows, and which of them each row is in, int32 [N]."""
    places: dict[FrameRef, int] = {}
    # Rows of one frame share its reference nearly always: a look at the object saves hashing its fields.
    seen: dict[int, int] = {}
    index = []
    for row in rows:
        place = seen.get(id(row.frame))
        if place is None:
            place = seen[id(row.frame)] = places.setdefault(row.frame, len(places))
        index.append(place)
    return list(places), np.array(index, np.int32)
