"""Rewards that are written, or return, what nobody expects: each is scored, or fails alone and says why."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from streamrl.errors import ConfigError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.scorer import Scorer, resolve_reward
from streamrl.rewards.signatures import RewardFunction
from streamrl.types import Score, ScoreStatus


def score_of(reward: RewardFunction) -> Score:
    scorer = Scorer(reward)
    (score,) = scorer.score([RewardItem("122", "37+85=", '{"answer":"122"}')])
    scorer.close()
    return score


class RaisesWhenRead:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


class RaisesWhenTold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (RaisesWhenRead(), "returned RaisesWhenRead, which raises RuntimeError when it is read"),
        (RaisesWhenTold(), "returned RaisesWhenTold, which raises RuntimeError when it is read"),
        (ValueError("no number in '\ud800'"), "ValueError: no number in '?'"),
        (np.ma.masked, "returned a masked value, not a number"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_told_fails_alone_and_its_child_lives(value: object, reason: str) -> None:
    def reward(completion: str) -> object:
        if isinstance(value, BaseException):
            raise value
        return value

    score = score_of(reward)
    assert (score.status, score.reason) == (ScoreStatus.FAILED, reason)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(score), type=type(score)) == score


def test_a_component_whose_name_is_no_utf_8_can_be_sent() -> None:
    score = score_of(lambda completion: {"score": 1.0, "a\ud800": 2.0})
    assert score.components == {"score": 1.0, "a?": 2.0}
    msgspec.msgpack.encode(score)


def test_a_completion_that_is_not_the_first_parameter_is_given_by_name() -> None:
    def reward(prompt: str, completion: str, answer: str) -> float:
        return float((prompt, completion, answer) == ("37+85=", "122", "122"))

    assert score_of(reward).reward == 1.0

    def other(prompt: str, response: str) -> float:
        return 1.0

    with pytest.raises(ConfigError, match="its first parameter gets the completion and is called 'prompt'"):
        Scorer(other)


def test_a_class_whose_objects_are_called_is_a_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "classes_of_rewards.py").write_text(
        "class Right:\n    def __call__(self, completion, answer):\n        return completion == answer\n"
        "class Needs:\n    def __init__(self, model): ...\n    def __call__(self, completion): return 1.0\n"
        "text = 'hello'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert score_of(resolve_reward("classes_of_rewards:Right")).reward == 1.0
    with pytest.raises(ConfigError, match=r"'classes_of_rewards:Needs' is a class, and making an object .*'model'"):
        resolve_reward("classes_of_rewards:Needs")
    with pytest.raises(ConfigError, match="'classes_of_rewards:text' is a str, not a function"):
        resolve_reward("classes_of_rewards:text")


def test_a_function_that_notes_things_by_trls_loggers_is_scored() -> None:
    def reward(completions: list[str], log_extra: Callable[..., None], log_metric: Callable[..., None]) -> list[float]:
        log_extra("texts", completions)
        log_metric("count", len(completions))
        return [1.0 for _ in completions]

    assert score_of(reward).reward == 1.0
