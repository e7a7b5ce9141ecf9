"""The order in which a run takes prompts: pass after pass over the data, each in a seeded order of its own.

A pure function of (number of prompts, seed, position): any process can ask for any position and gets the same
answer, so the cursor into the data is one number. Orders come from the raw PCG64 stream, which numpy keeps
stable across releases (it does not promise that for `Generator.permutation`).
"""

from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Protocol

import numpy as np

from streamrl.tasks.base import Task
from streamrl.tasks.permutation import Permutation
from streamrl.types import LongArray

PASSES_KEPT = 2  # positions advance; groups issued again after a resume reach back one pass at most
MOST_SORTED = 2**20  # prompts whose order is kept as an array; of more it is computed, place by place
BLOCK = 1024  # positions of a mixture whose parts come as often as their weights say
MOST_PARTS = 32


class Order(Protocol):
    """Which training prompt the n-th group takes, and in which pass over the data."""

    def at(self, n: int) -> tuple[int, int]:
        """(data_pass, data_index) of position `n >= 0`."""
        ...


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
        self._orders: dict[int, LongArray | Permutation] = {}

    def at(self, n: int) -> tuple[int, int]:
        """(data_pass, data_index) of position `n >= 0`."""
        if n < 0:
            raise ValueError(f"a position is not negative, got {n}")
        data_pass, place = divmod(n, self._num_prompts)
        return data_pass, int(self._order(data_pass)[place])

    def _order(self, data_pass: int) -> LongArray | Permutation:
        order = self._orders.get(data_pass)
        if order is None:
            make = _shuffled if self._num_prompts <= MOST_SORTED else Permutation
            order = make(self._num_prompts, self._seed, data_pass)
            self._orders[data_pass] = order
            for old in list(islice(self._orders, max(0, len(self._orders) - PASSES_KEPT))):
                del self._orders[old]
        return order


class MixedOrder:
    """Positions of a run over several parts of the data, each taken as often as its weight says.

    In each BLOCK positions the parts come in a seeded order, as often as their weights say, up to one prompt that the
    largest gives. A part has passes of its own: a small one with a high weight is begun anew more often.

    sizes: prompts of each part, whose indices follow on each other. weights: relative.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float], seed: int) -> None:
        if len(sizes) != len(weights) or not 0 < len(sizes) <= MOST_PARTS:
            raise ValueError(f"a mixture has 1 to {MOST_PARTS} parts and a weight for each, got {sizes} and {weights}")
        total = sum(weights)
        self._shares = [weight / total for weight in weights]
        self._largest = max(range(len(weights)), key=self._shares.__getitem__)
        self._first = [0, *accumulate(sizes)][:-1]
        self._orders = [PromptOrder(size, seed) for size in sizes]
        self._seed = seed
        self._blocks: dict[int, tuple[LongArray, LongArray]] = {}

    def at(self, n: int) -> tuple[int, int]:
        """(pass over the part, data_index) of position `n >= 0`."""
        if n < 0:
            raise ValueError(f"a position is not negative, got {n}")
        block, place = divmod(n, BLOCK)
        parts, turns = self._block(block)
        part = int(parts[place])
        data_pass, index = self._orders[part].at(int(turns[place]))
        return data_pass, self._first[part] + index

    def _block(self, block: int) -> tuple[LongArray, LongArray]:
        """int64 [BLOCK] each: the part of a position, and how often it came before."""
        found = self._blocks.get(block)
        if found is None:
            before, after = self._taken(block), self._taken(block + 1)
            parts = np.repeat(np.arange(len(before)), after - before)
            parts = parts[_shuffled(BLOCK, self._seed, block)]
            turns = np.empty(BLOCK, np.int64)
            for part, first in enumerate(before):
                mine = np.flatnonzero(parts == part)
                turns[mine] = first + np.arange(len(mine))
            self._blocks[block] = found = (parts, turns)
            for old in list(islice(self._blocks, max(0, len(self._blocks) - PASSES_KEPT))):
                del self._blocks[old]
        return found

    def _taken(self, blocks: int) -> LongArray:
        """int64 [parts]: prompts that each part has given after so many blocks."""
        taken = np.array([int(share * blocks * BLOCK) for share in self._shares], np.int64)
        taken[self._largest] += blocks * BLOCK - taken.sum()
        return taken


def order_of(task: Task, seed: int) -> Order:
    """The order of a task's prompts: mixed by weight where it has parts with weights."""
    weights, sizes = getattr(task, "weights", ()), getattr(task, "part_sizes", ())
    return MixedOrder(sizes, weights, seed) if weights and len(sizes) > 1 else PromptOrder(task.num_train, seed)


def _shuffled(num_prompts: int, seed: int, data_pass: int) -> LongArray:
    """int64 [num_prompts], each index once: indices sorted by one random 64-bit draw each."""
    draws = np.random.PCG64([seed, data_pass]).random_raw(num_prompts)
    return np.argsort(draws, kind="stable").astype(np.int64)
