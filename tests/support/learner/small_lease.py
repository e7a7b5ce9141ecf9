"""A lease of seeded rows: failed scores, rows without a sampled token, rows that were cut off."""

import numpy as np

from streamrl.buffers.rows.records import Lease
from streamrl.types import FrameRef


def lease(*, rows: int, seed: int, group_size: int = 4) -> Lease:
    random = np.random.default_rng(seed)
    valid = random.random(rows) > 0.1
    sampled = random.integers(0, 20, rows)
    return Lease(
        step=3,
        frames=[FrameRef("a", 0, 10, rows, 1, 2), FrameRef("b", 0, 10, rows, 1, 2)],
        frame_index=random.integers(0, 2, rows).astype(np.int32),
        row=np.arange(rows, dtype=np.int32),
        group=np.arange(rows) // group_size,
        sample_index=np.arange(rows) % group_size,
        branch=np.zeros(rows, np.int32),
        rewards=np.where(valid, random.random(rows), np.nan),
        components=np.zeros((rows, 0)),
        valid=valid,
        num_tokens=sampled + random.integers(1, 8, rows),
        sampled_tokens=sampled,
        truncated=random.random(rows) < 0.3,
        oldest_step=np.full(rows, 2),
    )
