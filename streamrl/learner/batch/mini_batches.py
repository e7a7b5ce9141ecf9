"""What one update of the weights is made of. `streamrl.learner.batch.mini_batch_cut` says which rows those are."""

from collections.abc import Sequence
from typing import NamedTuple

from streamrl.algorithms.aggregation import Denominators
from streamrl.learner.batch.packing import PackedBatch


class MiniBatch(NamedTuple):
    """What one update is made of, on one rank: packs in shares, and the counts over the whole mini-batch."""

    shares: Sequence[Sequence[PackedBatch]]
    total: Denominators
