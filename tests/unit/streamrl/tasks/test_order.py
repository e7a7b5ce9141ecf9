"""The order of prompts: every pass takes each prompt once, and any position can be asked for at any time."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrl.tasks.order import BLOCK, MOST_SORTED, PASSES_KEPT, MixedOrder, PromptOrder
from streamrl.tasks.permutation import Permutation

PINNED = [6, 4, 9, 3, 8, 5, 0, 1, 2, 7]

sizes = st.integers(1, 50)
seeds = st.integers(0, 2**31 - 1)


@given(num_prompts=sizes, seed=seeds, data_pass=st.integers(0, 5))
def test_every_pass_takes_each_prompt_exactly_once(num_prompts: int, seed: int, data_pass: int) -> None:
    order = PromptOrder(num_prompts, seed)
    taken = [order.at(data_pass * num_prompts + place) for place in range(num_prompts)]
    assert {number for number, _ in taken} == {data_pass}
    assert sorted(index for _, index in taken) == list(range(num_prompts))


@given(num_prompts=sizes, seed=seeds, positions=st.lists(st.integers(0, 500), min_size=1))
def test_a_position_means_the_same_whatever_was_asked_before(num_prompts: int, seed: int, positions: list[int]) -> None:
    wandering = PromptOrder(num_prompts, seed)
    for position in positions:
        assert wandering.at(position) == PromptOrder(num_prompts, seed).at(position)


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    def indices(seed: int, data_pass: int) -> list[int]:
        order = PromptOrder(100, seed)
        return [order.at(data_pass * 100 + place)[1] for place in range(100)]

    orders = [indices(seed, data_pass) for seed in range(3) for data_pass in range(3)]
    assert len({tuple(order) for order in orders}) == 9


def test_the_order_is_pinned() -> None:
    """A change here would resume old runs with other data."""
    order = PromptOrder(8, 0)
    assert [order.at(n)[1] for n in range(10)] == [3, 2, 1, 6, 0, 7, 4, 5, 7, 4]


def test_no_more_than_the_last_passes_are_kept_in_memory() -> None:
    order = PromptOrder(10, 0)
    for position in range(0, 200, 10):
        order.at(position)
    assert len(order._orders) == PASSES_KEPT


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        PromptOrder(0, 0)
    with pytest.raises(ValueError, match="not negative"):
        PromptOrder(1, -1)
    with pytest.raises(ValueError, match="not negative"):
        PromptOrder(1, 0).at(-1)


def test_of_many_prompts_the_order_is_computed_and_still_takes_each_once() -> None:
    count = MOST_SORTED + 3
    order = PromptOrder(count, 7)
    taken = [order.at(place)[1] for place in range(0, count, 97)]
    assert len(set(taken)) == len(taken)
    assert all(0 <= index < count for index in taken)
    assert taken != sorted(taken)
    assert order.at(count + 5)[0] == 1
    assert order.at(5) != order.at(count + 5)


@given(count=st.integers(1, 300), seed=seeds, data_pass=st.integers(0, 3))
def test_a_computed_permutation_takes_each_index_once(count: int, seed: int, data_pass: int) -> None:
    permutation = Permutation(count, seed, data_pass)
    assert sorted(permutation[place] for place in range(count)) == list(range(count))


def test_a_computed_permutation_is_pinned() -> None:
    """A change here would resume old runs with other data."""
    assert [Permutation(10, 0, 0)[place] for place in range(10)] == PINNED


sources = st.lists(st.tuples(st.integers(1, 40), st.floats(0.05, 20.0)), min_size=2, max_size=6)


@given(parts=sources, seed=seeds)
def test_a_mixture_takes_each_part_as_often_as_its_weight_says(parts: list[tuple[int, float]], seed: int) -> None:
    sizes, weights = [size for size, _ in parts], [weight for _, weight in parts]
    order = MixedOrder(sizes, weights, seed)
    taken = [order.at(n) for n in range(2 * BLOCK)]
    bounds = np.cumsum([0, *sizes])
    for part, (low, high) in enumerate(itertools.pairwise(bounds.tolist())):
        mine = [one for one in taken if low <= one[1] < high]
        assert abs(len(mine) - 2 * BLOCK * weights[part] / sum(weights)) <= len(parts)
        # Pass after pass, each of its prompts once in each.
        assert [data_pass for data_pass, _ in mine] == [place // sizes[part] for place in range(len(mine))]
        whole = len(mine) // sizes[part] * sizes[part]
        assert all(count == 1 for count in Counter(mine[:whole]).values())


@given(positions=st.lists(st.integers(0, 5 * BLOCK), min_size=1, max_size=20), seed=seeds)
def test_a_position_of_a_mixture_means_the_same_whatever_was_asked_before(positions: list[int], seed: int) -> None:
    wandering = MixedOrder([5, 100], [3.0, 1.0], seed)
    for position in positions:
        assert wandering.at(position) == MixedOrder([5, 100], [3.0, 1.0], seed).at(position)
