"""A conversation: which calls are turns, and which are forks."""

import random
import secrets

import numpy as np
import pytest

from streamrl.conversations.conversation import Call, Conversation
from streamrl.gateway.sessions.trajectory import check_branch


def call(prompt: list[int], ids: list[int], *, step: int = 0, finish: str = "stop") -> Call:
    return Call(prompt, ids, [-0.1 * one for one in ids], [(0, 0, step)], finish)


def conversation_of(*calls: Call) -> Conversation:
    conversation = Conversation()
    for one in calls:
        conversation.add(one)
    return conversation


def shape(conversation: Conversation) -> list[list[tuple[list[int], list[int]]]]:
    """(ids before, sampled ids) of each turn of each branch."""
    branches = conversation.branches()
    return [[(list(turn.prompt_ids), list(turn.token_ids)) for turn in branch.turns] for branch in branches]


def test_a_call_that_extends_another_is_its_next_turn() -> None:
    conversation = conversation_of(
        call([1, 2], [3, 4]), call([1, 2, 3, 4, 9, 9], [5], step=2), call([1, 2, 3, 4, 9, 9, 5], [6], step=2)
    )
    assert shape(conversation) == [[([1, 2], [3, 4]), ([9, 9], [5]), ([], [6])]]
    assert conversation.first_prompt == [1, 2]
    assert conversation.num_tokens == 8


@pytest.mark.parametrize("prompt", [[1, 2], [1, 2, 3], [1, 2, 3, 5], [2, 2, 3, 4], [9, 1, 2, 3, 4]])
def test_any_other_call_is_a_fork_with_a_prompt_of_its_own(prompt: list[int]) -> None:
    conversation = conversation_of(call([1, 2], [3, 4]), call(prompt, [7], finish="length"))
    assert shape(conversation) == [[([1, 2], [3, 4])], [(prompt, [7])]]
    assert [branch.finish_reason for branch in conversation.branches()] == ["stop", "length"]


def test_a_turn_goes_to_the_longest_branch_that_it_extends() -> None:
    conversation = conversation_of(call([1], [2]), call([1], [2, 3]), call([1, 2, 3, 4], [5]), call([1, 2, 8], [6]))
    assert shape(conversation) == [[([1], [2]), ([8], [6])], [([1], [2, 3]), ([4], [5])]]


def test_what_an_older_version_samples_behind_a_newer_one_is_a_fork() -> None:
    conversation = conversation_of(call([1], [2], step=3), call([1, 2], [3], step=2), call([1, 2, 3], [4], step=3))
    assert shape(conversation) == [[([1], [2])], [([1, 2], [3]), ([], [4])]]


def test_a_call_without_a_sampled_token_leaves_no_trace() -> None:
    assert shape(conversation_of(call([1], []), call([1], [2]))) == [[([1], [2])]]


def test_of_random_calls_each_sampled_token_is_trained_once_and_each_row_can_be() -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    conversation, texts, sampled = Conversation(), [[1]], 0
    for _ in range(80):
        prompt = [*rng.choice(texts), *(rng.randrange(3) for _ in range(rng.randrange(3)))]
        if rng.random() < 0.2:
            prompt = prompt[: rng.randrange(1, len(prompt) + 1)]
        ids = [rng.randrange(3) for _ in range(rng.randrange(4))]
        conversation.add(call(prompt, ids, step=rng.randrange(3)))
        texts.append([*prompt, *ids])
        sampled += len(ids)
    branches = conversation.branches()
    assert sum(len(turn.token_ids) for branch in branches for turn in branch.turns) == sampled
    for branch in branches:
        check_branch(branch, context=10**6, vocab_size=3)
        whole = [token for turn in branch.turns for token in (*turn.prompt_ids, *turn.token_ids)]
        assert whole in texts
    assert conversation.num_tokens == sum(branch.num_tokens for branch in branches)


def test_what_was_chosen_for_the_model_stands_among_the_ids_before_its_next_turn() -> None:
    own = [False, True, True, False, True, False]
    first = Call(
        [1], [2, 3, 4, 5, 6, 7], [-0.1 * one for one in range(6)], [(0, 0, 1), (2, 0, 2), (5, 0, 3)], "stop", own=own
    )
    conversation = conversation_of(first, call([1, 2, 3, 4, 5, 6, 7, 8], [9, 10], step=3))
    assert shape(conversation) == [[([1, 2], [3, 4]), ([5], [6]), ([7, 8], [9, 10])]]
    (branch,) = conversation.branches()
    assert [list(turn.spans) for turn in branch.turns] == [[(0, 0, 1), (1, 0, 2)], [(0, 0, 2)], [(0, 0, 3)]]
    assert [list(turn.logprobs) for turn in branch.turns[:2]] == [[-0.1, -0.2], [-0.4]]
    assert (conversation.num_turns, conversation.num_tokens) == (2, 10)


def test_a_branch_of_which_the_model_chose_nothing_is_no_row() -> None:
    given = call([1], [2, 3])._replace(own=[False, False])
    conversation = conversation_of(given, call([5], [6]))
    assert shape(conversation) == [[([5], [6])]]
    conversation.add(call([1, 2, 3, 4], [7]))
    assert shape(conversation) == [[([1, 2, 3, 4], [7])], [([5], [6])]]


def test_of_random_choices_each_of_the_models_own_is_trained_once_under_its_version_and_route() -> None:
    seed = secrets.randbits(32)
    print("seed", seed)
    rng = random.Random(seed)
    conversation, ids, expected, step = Conversation(), [0], {}, 0
    for _ in range(30):
        sampled = [len(ids) + place for place in range(rng.randrange(1, 6))]
        begins = sorted(rng.sample(range(1, len(sampled)), k=rng.randrange(len(sampled)))) if len(sampled) > 1 else []
        spans = [(start, 0, step := step + rng.randrange(2)) for start in (0, *begins)]
        own = rng.choice([None, [rng.random() < 0.5 for _ in sampled]])
        routes = np.array([*ids, *sampled], np.int16)[:, None, None]
        conversation.add(Call(ids, sampled, [-float(one) for one in sampled], spans, "stop", routes=routes, own=own))
        for place, one in enumerate(sampled):
            if own is None or own[place]:
                expected[one] = next(span[2] for span in reversed(spans) if span[0] <= place)
        ids = [*ids, *sampled, *range(len(ids) + len(sampled), len(ids) + len(sampled) + rng.randrange(3))]
    (branch,) = conversation.branches()
    check_branch(branch, context=10**6, vocab_size=10**6)
    whole, found = list[int](), dict[int, int]()
    for turn in branch.turns:
        for place, one in enumerate(turn.token_ids):
            found[one] = next(span[2] for span in reversed(turn.spans) if span[0] <= place)
        assert list(turn.logprobs) == [-float(one) for one in turn.token_ids]
        whole += [*turn.prompt_ids, *turn.token_ids]
        assert turn.routes is not None
        assert turn.routes[:, 0, 0].tolist() == whole == ids[: len(whole)]
    assert found == expected
