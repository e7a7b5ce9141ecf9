"""Several rewards: their weighted sum, each kept by name; what failed is no zero, and what has no say is left out."""

import math

import pytest

from streamrl.config.schema.run import RewardModelConfig, RewardRule
from streamrl.errors import ConfigError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.build import make_scorer
from streamrl.types import Score, ScoreStatus

NO_MODEL = RewardModelConfig()
ITEM = RewardItem("#### 4", "2+2=", '{"answer":"4"}', token_ids=b"\1\0\0\0" * 6)


def score(functions: dict[str, float], item: RewardItem = ITEM, **options: dict[str, object]) -> Score:
    scorer = make_scorer(RewardRule(functions, options), NO_MODEL)
    try:
        (verdict,) = scorer.score([item])
        return verdict
    finally:
        scorer.close()


def test_the_reward_is_the_weighted_sum_and_each_is_a_component() -> None:
    verdict = score({"gsm8k": 1.0, "contains": 0.5, "exact": 2.0})
    assert verdict.reward == 1.5
    assert verdict.components == {"gsm8k": 1.0, "contains": 1.0, "exact": 0.0}


def test_a_function_with_options_of_its_own_and_dapos_soft_punishment() -> None:
    verdict = score({"gsm8k": 1.0, "overlong": 1.0}, overlong={"max_tokens": 8, "buffer": 4})
    assert verdict.reward == 0.5
    assert verdict.components == {"gsm8k": 1.0, "overlong": -0.5}


def test_one_function_of_weight_one_is_the_reward_itself() -> None:
    assert score({"gsm8k": 1.0}) == Score.ok(1.0)
    assert score({"gsm8k": 0.5}).components == {"gsm8k": 1.0}


def test_a_part_that_failed_fails_the_whole_with_its_name_and_is_no_zero() -> None:
    verdict = score({"gsm8k": 1.0, "multiple_choice": 1.0}, RewardItem("A", "?", '{"answer":"A"}'))
    assert verdict.status is ScoreStatus.FAILED
    assert verdict.reason.startswith("gsm8k: ValueError: the answer 'A' holds no number")


def test_what_has_no_say_is_left_out_and_where_none_has_one_there_is_no_score(tmp_path, monkeypatch) -> None:
    (tmp_path / "say_rewards.py").write_text("def never(completion, **_):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert score({"say_rewards:never": 5.0, "gsm8k": 1.0}).components == {"gsm8k": 1.0}
    assert score({"say_rewards:never": 5.0}).reason.startswith("no reward function has a say")


def test_options_of_a_function_that_is_not_there_or_that_it_does_not_take_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"reward.options has 'math', and the functions are gsm8k"):
        score({"gsm8k": 1.0}, math={})
    with pytest.raises(ConfigError, match="takes no option 'mode'; it takes answer, format_score, method"):
        score({"gsm8k": 1.0}, gsm8k={"mode": "strict"})


@pytest.mark.parametrize(("tokens", "reward"), [(0, 0.0), (12, 0.0), (14, -0.5), (16, -1.0), (99, -1.0), (13, -0.25)])
def test_overlong_falls_linearly_within_its_buffer(tokens: int, reward: float) -> None:
    item = RewardItem("x", token_ids=b"\1\0\0\0" * tokens)
    verdict = score({"overlong": 1.0}, item, overlong={"max_tokens": 16, "buffer": 4})
    assert verdict.reward == pytest.approx(reward)


@pytest.mark.parametrize(("tokens", "reward"), [(10, 1.0), (12, 1.0), (13, 0.9), (8, 1.0), (0, 0.2), (40, 0.0)])
def test_length_falls_with_the_distance(tokens: int, reward: float) -> None:
    item = RewardItem("x", token_ids=b"\1\0\0\0" * tokens)
    verdict = score({"length": 1.0}, item, length={"target": 10, "tolerance": 2})
    assert math.isclose(verdict.reward or 0.0, reward, abs_tol=1e-9)


def test_reasoning_gym_scores_by_the_data_set_itself() -> None:
    pytest.importorskip("reasoning_gym")
    item = RewardItem("7", "3 + 4 =", '{"answer":"7","metadata":{}}')
    assert score({"reasoning_gym:basic_arithmetic": 1.0}, item).reward == 1.0
    with pytest.raises(ConfigError, match="has no data set 'nothing'"):
        score({"reasoning_gym:nothing": 1.0})
