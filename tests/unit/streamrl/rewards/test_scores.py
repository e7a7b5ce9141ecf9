"""Scoring without processes: signatures, and that a failure is never a number."""

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamrl.errors import ConfigError
from streamrl.rewards.base import REASON_LENGTH, RewardItem, to_score
from streamrl.rewards.scorer import Scorer, resolve_reward
from streamrl.types import Score, ScoreStatus

SCALARS = [
    (np.bool_(True), 1.0),
    (np.array(0.25), 0.25),
    (np.float16(0.5), 0.5),
    (torch.tensor(0.75), 0.75),
    (torch.tensor(True), 1.0),
    (torch.tensor(2, dtype=torch.bfloat16), 2.0),
    (Decimal("0.5"), 0.5),
]


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


def item(
    *, completion: str = "122", answer: str = "122", finish_reason: str = "stop", payload: str | None = None
) -> RewardItem:
    return RewardItem(
        completion=completion,
        prompt="37+85=",
        payload=f'{{"answer":"{answer}"}}' if payload is None else payload,
        finish_reason=finish_reason,
        token_ids=np.array([4, 5, 2], dtype="<i4").tobytes(),
    )


def score_with(function: Any, *items: RewardItem) -> list[Score]:
    scorer = Scorer(function)
    try:
        return scorer.score(items or [item()])
    finally:
        scorer.close()


def test_exact_match_wants_every_character_and_an_end_of_its_own() -> None:
    reward = resolve_reward("exact_match")
    items = [
        item(),
        item(completion="123"),
        item(completion="122 "),
        item(completion=""),
        item(finish_reason="length"),
        item(payload='{"answer":122,"other":1}'),
    ]
    assert [score.reward for score in score_with(reward, *items)] == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_contains_looks_anywhere() -> None:
    items = [item(completion="it is 122."), item(completion="it is 12")]
    assert [score.reward for score in score_with(resolve_reward("contains"), *items)] == [1.0, 0.0]


def test_a_payload_without_the_answer_is_a_failure_and_not_a_zero() -> None:
    (score,) = score_with(resolve_reward("exact_match"), item(payload="{}"))
    assert score.status is ScoreStatus.FAILED
    assert score.reward is None
    assert "TypeError" in score.reason
    assert "answer" in score.reason


@pytest.mark.parametrize(
    ("value", "reward"),
    [(1, 1.0), (True, 1.0), (0.25, 0.25), (np.float32(0.5), 0.5), (np.int64(3), 3.0), (Fraction(1, 4), 0.25), *SCALARS],
)
def test_a_finite_number_is_the_reward(value: object, reward: float) -> None:
    assert to_score(value) == Score.ok(reward)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "None"),
        ("1.0", "str"),
        (math.nan, "nan"),
        (-math.inf, "inf"),
        (np.float32("nan"), "nan"),
        (10**400, "int"),
        pytest.param(10**5000, "int", id="too long to print"),
        ([1.0], "list"),
        (1 + 0j, "complex"),
        (Unprintable(), "Unprintable"),
        ({}, "empty dict"),
        ({"a": None}, "component 'a' is None"),
        ({"a": 1.0, "b": math.nan}, "component 'b'"),
        ({"a": 1e308, "b": 1e308}, "inf"),
        (ValueError("bad brackets"), "ValueError: bad brackets"),
    ],
)
def test_invariant_8_what_is_no_finite_number_fails_and_says_what_it_was(value: object, word: str) -> None:
    score = to_score(value)
    assert score.status is ScoreStatus.FAILED
    assert score.reward is None
    assert word in score.reason


def test_a_dict_is_its_reward_entry_or_its_sum_and_keeps_its_parts() -> None:
    assert to_score({"format": 0.5, "answer": 1}) == Score.ok(1.5, {"format": 0.5, "answer": 1.0})
    assert to_score({"reward": 2, "seen": 9}) == Score.ok(2.0, {"reward": 2.0, "seen": 9.0})


def test_a_long_reason_is_cut_and_stays_on_one_line() -> None:
    reason = to_score(RuntimeError("x\n" * 10_000)).reason
    assert len(reason) == REASON_LENGTH
    assert "\n" not in reason


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(value=junk)
def test_invariant_8_any_value_at_all_gives_a_finite_reward_or_a_reason(value: object) -> None:
    score = to_score(value)
    if score.status is ScoreStatus.OK:
        assert score.reward is not None
        assert math.isfinite(score.reward)
    else:
        assert score.reward is None
        assert score.reason


def test_a_function_gets_only_what_it_asks_for() -> None:
    def wants_prompt(text: str, prompt: str) -> float:
        return float((text, prompt) == ("122", "37+85="))

    def wants_all(completion: str, **rest: object) -> float:
        return float(rest == {"prompt": "37+85=", "finish_reason": "stop", "answer": "122"})

    def wants_ids(completion: str, *, completion_ids: list[int]) -> float:
        return float(completion_ids == [4, 5, 2])

    def wants_nothing_else(completion: str, /) -> float:
        return float(completion == "122")

    for function in (wants_prompt, wants_all, wants_ids, wants_nothing_else):
        assert score_with(function) == [Score.ok(1.0)], function.__name__


def test_a_payload_key_that_streamrl_passes_itself_is_a_failure() -> None:
    def reward(completion: str, **rest: object) -> float:
        return 1.0

    (score,) = score_with(reward, item(payload='{"prompt":"x"}'))
    assert "key 'prompt'" in score.reason
    (score,) = score_with(reward, item(payload="[1]"))
    assert "not an object" in score.reason
    (score,) = score_with(reward, item(payload="{"))
    assert "DecodeError" in score.reason


def test_the_guilty_item_fails_alone() -> None:
    def reward(completion: str) -> object:
        if completion == "raise":
            raise KeyError("lost")
        if completion == "exit":
            raise SystemExit(3)
        return {"none": None, "nan": math.nan}.get(completion, 1.0)

    names = ["good", "raise", "exit", "none", "nan", "good"]
    scores = score_with(reward, *[item(completion=name) for name in names])
    assert [score.reward for score in scores] == [1.0, None, None, None, None, 1.0]
    assert [score.reason for score in scores][1:5] == [
        "KeyError: 'lost'",
        "SystemExit: 3",
        "returned None",
        "returned nan",
    ]


def test_async_rewards_run_together_and_fail_alone() -> None:
    async def reward(completion: str) -> float:
        if completion == "raise":
            raise OSError("judge is down")
        return 1.0

    scores = score_with(reward, item(), item(completion="raise"), item())
    assert [score.reward for score in scores] == [1.0, None, 1.0]
    assert scores[1].reason == "OSError: judge is down"


def test_the_signature_of_trl_is_taken_as_it_is() -> None:
    seen: dict[str, Any] = {}

    def reward(completions: list[str], answer: list[str], completion_ids: list[list[int]], **columns: Any) -> list:
        seen.update(columns, completion_ids=completion_ids)
        return [
            float(text == right and ids[-1] == 2)
            for text, right, ids in zip(completions, answer, completion_ids, strict=True)
        ]

    scores = score_with(reward, item(), item(completion="1"), item(payload='{"answer":"122","level":2}'))
    assert [score.reward for score in scores] == [1.0, 0.0, 1.0]
    assert seen["prompts"] == ["37+85="] * 3
    assert seen["level"] == [None, None, 2]
    assert seen["completion_ids"] == [[4, 5, 2]] * 3


def test_an_async_batch_and_an_array_of_rewards_are_taken() -> None:
    async def slow(completions: list[str]) -> tuple[float, ...]:
        return tuple(1.0 for _ in completions)

    def array(completions: list[str]) -> Any:
        return np.arange(len(completions), dtype=np.float32)

    assert [score.reward for score in score_with(slow, item(), item())] == [1.0, 1.0]
    assert [score.reward for score in score_with(array, item(), item())] == [0.0, 1.0]


def test_a_batch_function_that_raises_is_asked_again_one_by_one() -> None:
    def reward(completions: list[str]) -> list[float]:
        return [1.0 / len(text) for text in completions]

    scores = score_with(reward, item(), item(completion=""), item())
    assert [score.reward for score in scores] == [1 / 3, None, 1 / 3]
    assert "ZeroDivisionError" in scores[1].reason


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ([], "returned 0 rewards for 1 completion"),
        ([1.0] * 5, "returned 5 rewards for 1 completion"),
        (None, "returned NoneType, not a list"),
        ("11", "returned str, not a list"),
        (1.0, "returned float, not a list"),
        ([None, None], "returned 2 rewards for 1 completion"),
    ],
)
def test_a_batch_function_that_returns_something_else_fails_every_item(returned: Any, reason: str) -> None:
    def reward(completions: list[str]) -> Any:
        return returned

    scores = score_with(reward, item(), item(), item())
    assert [score.status for score in scores] == [ScoreStatus.FAILED] * 3
    assert all(reason in score.reason for score in scores)


def test_none_in_a_batch_fails_that_item_only() -> None:
    def reward(completions: list[str]) -> list[float | None]:
        return [1.0, None]

    scores = score_with(reward, item(), item())
    assert [score.reward for score in scores] == [1.0, None]


def test_a_function_that_takes_no_completion_is_refused() -> None:
    def nothing() -> float:
        return 1.0

    def only_keywords(*, prompt: str) -> float:
        return 1.0

    for function in (nothing, only_keywords):
        with pytest.raises(ConfigError, match="takes no completion"):
            Scorer(function)


@pytest.mark.parametrize(
    ("name", "fragments"),
    [
        ("exact-match", ["unknown reward", "did you mean 'exact_match'", "contains"]),
        ("math:pi", ["is a float, not a function"]),
        ("math:no_such", ["has no 'no_such'"]),
    ],
)
def test_a_reward_that_cannot_be_had_is_named_with_the_way_out(name: str, fragments: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_reward(name)
    for fragment in fragments:
        assert fragment in str(caught.value)


def test_verls_dictionary_has_its_reward_its_numbers_and_the_rest_as_information() -> None:
    score = to_score({"score": np.float64(1.0), "acc": True, "pred": "42", "steps": [1, 2], "none": None})
    assert (score.status, score.reward) == (ScoreStatus.OK, 1.0)
    assert score.components == {"score": 1.0, "acc": 1.0}
    assert json.loads(score.info) == {"pred": "42", "steps": "[1, 2]", "none": "None"}
    assert to_score({"score": 0.5, "reward": 1.0}).reward == 1.0
    assert to_score({"a": 0.5, "b": 0.25, "note": "fine"}).reward == 0.75


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ({"score": "1", "acc": 1}, "component 'score' is str"),
        ({"score": None, "acc": 1}, "component 'score' is None"),
        ({"score": 1.0, "acc": math.nan}, "component 'acc' is nan"),
        ({"pred": "42"}, "a dict without a number: 'pred'"),
        (np.array([1.0]), r"ndarray of shape (1,), not a number"),
        (torch.zeros(2, 1), "Tensor of shape (2, 1), not a number"),
    ],
    ids=repr,
)
def test_what_has_dimensions_or_no_number_is_no_reward(value: object, word: str) -> None:
    score = to_score(value)
    assert score.status is ScoreStatus.FAILED
    assert word in score.reason


VERL = json.dumps(
    {"data_source": "gsm8k", "reward_model": {"ground_truth": "122", "style": "rule"}, "extra_info": {"index": 3}}
)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, Any]:
    return {"score": float(solution_str == ground_truth), "index": extra_info["index"], "source": data_source}


async def compute_score_later(solution_str: str, ground_truth: str, **_: Any) -> np.bool_:
    return np.bool_(solution_str == ground_truth)


def compute_scores(
    data_sources: list[str], solution_strs: list[str], ground_truths: list[str], extra_infos: list[Any]
) -> list[float]:
    assert data_sources == ["gsm8k"] * len(solution_strs)
    return [float(text == truth) for text, truth in zip(solution_strs, ground_truths, strict=True)]


@pytest.mark.parametrize("function", [compute_score, compute_score_later, compute_scores])
def test_verls_signatures_get_what_its_reward_managers_pass(function: Any) -> None:
    right, wrong = score_with(function, item(payload=VERL), item(payload=VERL, completion="1"))
    assert (right.reward, wrong.reward) == (1.0, 0.0)


def test_verls_signature_takes_the_answer_of_a_row_that_is_not_in_verls_layout() -> None:
    (score,) = score_with(compute_score_later, item(payload='{"answer":"122"}'))
    assert score.reward == 1.0


def reward_func(queries: list[str], prompts: list[str], labels: list[str]) -> dict[str, Any]:
    right = [query == prompt + label for query, prompt, label in zip(queries, prompts, labels, strict=True)]
    reward = torch.tensor(right).float()
    lengths = torch.tensor([len(query) for query in queries])
    return {"rewards": reward, "scores": reward, "extra_logs": {"length": lengths, "batch": len(queries)}}


@pytest.mark.parametrize("column", ["label", "labels", "answer", "ground_truth"])
def test_openrlhfs_functions_get_prompt_and_completion_as_one_text_and_the_label(column: str) -> None:
    payload = json.dumps({column: "122"})
    right, wrong = score_with(reward_func, item(payload=payload), item(payload=payload, completion="1"))
    assert right == Score.ok(1.0, {"reward": 1.0, "scores": 1.0, "length": 9.0})
    assert wrong == Score.ok(0.0, {"reward": 0.0, "scores": 0.0, "length": 7.0})


def test_openrlhfs_functions_get_the_columns_that_they_take_and_may_return_a_tensor_alone() -> None:
    seen: list[Any] = []

    def reward(queries: list[str], level: list[int], **kwargs: Any) -> torch.Tensor:
        seen.append((level, sorted(kwargs)))
        return torch.ones(len(queries))

    payload = '{"label":"122","level":3}'
    assert [score.reward for score in score_with(reward, item(payload=payload), item(payload=payload))] == [1.0, 1.0]
    assert seen == [([3, 3], ["label", "labels", "prompts"])]


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ({"rewards": torch.ones(3)}, "returned 3 rewards for 1 completion"),
        ({"rewards": torch.ones(1), "extra_logs": {"length": [1, 2]}}, "returned 2 rewards for 1 completion"),
        ({"rewards": torch.tensor(1.0)}, "returned Tensor, not a list of rewards"),
        ({"rewards": torch.tensor([math.nan])}, "component 'reward' is nan"),
        ({"scores": torch.ones(1)}, "returned dict, not a list of rewards"),
    ],
)
def test_what_is_no_reward_of_openrlhfs_fails_and_says_what_it_was(returned: dict[str, Any], reason: str) -> None:
    (score,) = score_with(lambda queries, prompts, labels: returned, item())
    assert score.status is ScoreStatus.FAILED
    assert reason in score.reason


CHAT = json.dumps({"messages": [{"role": "user", "content": "37+85?"}], "answer": "122"})


def test_trls_functions_get_conversations_where_the_prompt_is_one() -> None:
    seen: list[Any] = []

    def reward(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        seen.append((prompts, completions))
        return [float(completion[0]["content"] == right) for completion, right in zip(completions, answer, strict=True)]

    assert [score.reward for score in score_with(reward, item(payload=CHAT))] == [1.0]
    assert seen == [([json.loads(CHAT)["messages"]], [[{"role": "assistant", "content": "122"}]])]


def test_none_is_no_say_on_an_item_and_alone_it_is_no_score() -> None:
    scorer = Scorer(lambda completions, **_: [None, 1.0])
    assert scorer.verdicts([item(), item()]) == [None, Score.ok(1.0)]
    assert scorer.score([item(), item()]) == [Score.failed("returned None"), Score.ok(1.0)]


def test_options_are_passed_by_name_and_one_that_is_not_taken_is_refused() -> None:
    def reward(completion: str, *, bonus: float = 0.0) -> float:
        return bonus

    assert Scorer(reward, {"bonus": 2.0}).score([item()])[0].reward == 2.0
    with pytest.raises(ConfigError, match="takes no option 'bonos'; it takes bonus"):
        Scorer(reward, {"bonos": 2.0})
