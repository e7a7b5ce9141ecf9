"""The order in which a run takes prompts: pass after pass over the data, each in a seeded order of its own.

A pure function of (number of prompts, seed, position): any process can ask for any position and gets the same
answer, so the cursor into the data is one number. Orders come from the raw PCG64 stream, which numpy keeps
stable across releases (it does not promise that for `Generator.permutation`).
"""

from itertools import islice

import numpy as np

from streamrl.types import LongArray

PASSES_KEPT = 2  # positions advance; groups issued again after a resume reach back one pass at most


class PromptOrder:
    """Positions 0, 1, 2, ... of a run, mapped to (data pass, index of the training prompt).

    Example:
        >>> order = PromptOrder(num_prompts=3, seed=0)
        >>> sorted(order.at(n)[1] for n in range(3))
        [0, 1, 2]
    """

    def __init__(self, num_prompts: int, seed: int) -> None:
        if num_prompts < 1:
            raise ValueError(f"an order needs at least one prompt, got num_prompts = {num_prompts}")
        if seed < 0:
            raise ValueError(f"a seed is not negative, got {seed}")
        self._num_prompts = num_prompts
        self._seed = seed
        self._orders: dict[int, LongArray] = {}

    def at(self, n: int) -> tuple[int, int]:
        """(data_pass, data_index) of position `n >= 0`."""
        if n < 0:
            raise ValueError(f"a position is not negative, got {n}")
        data_pass, place = divmod(n, self._num_prompts)
        return data_pass, int(self._order(data_pass)[place])

    def _order(self, data_pass: int) -> LongArray:
        order = self._orders.get(data_pass)
        if order is None:
            order = _shuffled(self._num_prompts, self._seed, data_pass)
            self._orders[data_pass] = order
            for old in list(islice(self._orders, max(0, len(self._orders) - PASSES_KEPT))):
                del self._orders[old]
        return order


def _shuffled(num_prompts: int, seed: int, data_pass: int) -> LongArray:
    """int64 [num_prompts], each index once: indices sorted by one random 64-bit draw each."""
    draws = np.random.PCG64([seed, data_pass]).random_raw(num_prompts)
    return np.argsort(draws, kind="stable").astype(np.int64)
