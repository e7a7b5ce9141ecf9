"""The order of prompts: every pass takes each prompt once, and any position can be asked for at any time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrl.tasks.order import PASSES_KEPT, PromptOrder

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
