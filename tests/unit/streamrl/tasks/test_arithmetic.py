"""The arithmetic task: what it asks, and that what is held out stays out."""

import json
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.errors import ConfigError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.scorer import Scorer, resolve_reward
from streamrl.tasks.arithmetic import ArithmeticTask
from streamrl.tasks.base import Prompt, digest_prompts, is_demonstrated


def all_prompts(task: ArithmeticTask) -> tuple[list[Prompt], list[Prompt]]:
    train = [task.train(index) for index in range(task.num_train)]
    return train, [task.held_out(index) for index in range(task.num_held_out)]


def test_a_tenth_of_the_pairs_is_exactly_one_thousand_and_never_trained() -> None:
    task = ArithmeticTask(held_out=0.1)
    train, held_out = all_prompts(task)
    assert (len(train), len(held_out)) == (9000, 1000)
    texts = {prompt.text for prompt in train} | {prompt.text for prompt in held_out}
    assert texts == {f"{a}+{b}=" for a in range(100) for b in range(100)}
    assert len({prompt.prompt_id for prompt in train + held_out}) == 10_000


def test_every_payload_holds_the_sum() -> None:
    for prompt in chain(*all_prompts(ArithmeticTask(held_out=0.02))):
        left, right = prompt.text.rstrip("=").split("+")
        assert json.loads(prompt.payload) == {"answer": str(int(left) + int(right))}


def test_it_says_what_its_longest_prompt_adds_to_a_row() -> None:
    task = ArithmeticTask(held_out=0.0)
    assert task.longest_text == max(
        3 * len(prompt.prompt_id.encode()) + len(prompt.payload.encode()) for prompt in all_prompts(task)[0]
    )


def test_the_held_out_set_is_the_same_in_every_process() -> None:
    task = ArithmeticTask(held_out=0.1)
    assert [task.held_out(index).text for index in range(3)] == ["16+26=", "86+9=", "80+8="]
    assert task.fingerprint() == ArithmeticTask(held_out=0.1).fingerprint()


def test_another_split_has_another_fingerprint_and_the_same_prompt_ids() -> None:
    small, large = ArithmeticTask(held_out=0.1), ArithmeticTask(held_out=0.2)
    assert small.fingerprint() != large.fingerprint()
    assert small.held_out(7) == large.held_out(7)


@settings(max_examples=20, deadline=None)
@given(share=st.floats(0.0, 0.9999))
def test_any_share_splits_the_pairs_without_loss(share: float) -> None:
    task = ArithmeticTask(held_out=share)
    assert task.num_held_out == round(share * 10_000)
    assert task.num_train + task.num_held_out == 10_000


def test_a_share_that_leaves_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"held_out = 1\.0 leaves no pair"):
        ArithmeticTask(held_out=1.0)


@pytest.mark.parametrize("index", [-1, 9000])
def test_an_index_out_of_range_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match="there are 9000"):
        ArithmeticTask(held_out=0.1).train(index)


def test_every_demonstration_earns_the_full_reward() -> None:
    task = ArithmeticTask(held_out=0.1)
    assert is_demonstrated(task)
    items = []
    for prompt in (task.train(index) for index in range(0, task.num_train, 100)):
        items.append(RewardItem(task.demonstration(prompt), prompt.text, prompt.payload))
    scores = Scorer(resolve_reward("exact_match")).score(items)
    assert [score.reward for score in scores] == [1.0] * 90


def test_moving_a_prompt_from_one_part_to_the_next_changes_the_digest() -> None:
    first, second = Prompt("a", "x"), Prompt("b", "y")
    assert digest_prompts([first, second], []) != digest_prompts([first], [second])
