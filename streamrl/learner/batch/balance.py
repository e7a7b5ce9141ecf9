"""Which rows each rank trains: equal work, not equal counts.

Pure and deterministic: the split depends on lengths and groups only, and each rank's rows stay in order.
Groups stay whole while that costs little balance, because a group's prompt is computed once on each rank
that has a row of it.
"""

import heapq

import numpy as np
import numpy.typing as npt

from streamrl.types import LongArray

WHOLE_GROUP_SLACK = 0.05
"""Work of the fullest rank over the mean at which groups are taken apart."""


def workload(lengths_N: LongArray, hidden_size: int) -> npt.NDArray[np.float64]:
    """float64 [N], relative cost of each row: its tokens, and the pairs that attention looks at.

    A layer's matrices cost about 24 h^2 operations a token, causal attention 2 h a token for each token
    before it; so the quadratic term is L^2 / (12 h).
    """
    lengths_N = lengths_N.astype(np.float64)
    return lengths_N + lengths_N**2 / (12.0 * hidden_size)


def split_rows(lengths_N: LongArray, group_N: LongArray, num_ranks: int, hidden_size: int) -> list[LongArray]:
    """For each rank the indices (int64, ascending) of its rows. A rank may get none.

    Of the work W in all, no rank has more than W / num_ranks and the heaviest row (Graham 1969, Bounds on
    multiprocessing timing anomalies), or than (1 + WHOLE_GROUP_SLACK) W / num_ranks where groups stay whole.
    """
    if num_ranks == 1:
        return [np.arange(len(lengths_N))]
    work_N = workload(lengths_N, hidden_size)
    names, place_N = np.unique(group_N, return_inverse=True)
    work_G = np.bincount(place_N, weights=work_N, minlength=len(names))
    rank_N = _longest_first(work_G, num_ranks)[place_N]
    loads = np.bincount(rank_N, weights=work_N, minlength=num_ranks)
    if loads.max(initial=0.0) > (1.0 + WHOLE_GROUP_SLACK) * work_N.sum() / num_ranks:
        rank_N = _longest_first(work_N, num_ranks)
    return [np.flatnonzero(rank_N == rank) for rank in range(num_ranks)]


def _longest_first(work_M: npt.NDArray[np.float64], num_ranks: int) -> LongArray:
    """int64 [M], the rank of each item: the largest item goes to the rank that has least (Graham 1969)."""
    ranks = np.zeros(len(work_M), np.int64)
    loads = [(0.0, rank) for rank in range(num_ranks)]
    for item in np.argsort(-work_M, kind="stable").tolist():
        load, rank = loads[0]
        ranks[item] = rank
        heapq.heapreplace(loads, (load + float(work_M[item]), rank))
    return ranks
