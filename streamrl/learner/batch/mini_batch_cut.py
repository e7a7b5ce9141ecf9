"""How a step's batch is cut for several updates: groups whole and in data order, as many in each as can be.

Pure: the cut depends on the groups' numbers alone, so it is the same on every rank and in a step that is made again.
Without torch, since the controller and `streamrl sql` cut as well.
"""

import numpy as np

from streamrl.types import LongArray


def mini_batch_of(group_N: LongArray, count: int) -> LongArray:
    """int64 [N], the mini-batch of each row, from 0. Fewer groups than `count` make as many mini-batches as groups."""
    names, place_N = np.unique(group_N, return_inverse=True)
    return place_N * min(count, len(names)) // max(len(names), 1)
