"""Reward functions that were written for other systems are called as there."""

import functools
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from streamrl.errors import ConfigError
from streamrl.rewards.base import RewardItem
from streamrl.rewards.scorer import Scorer
from streamrl.types import Score

ASKED = [{"role": "system", "content": "Add."}, {"role": "user", "content": "37+85?"}]
SAID = [{"role": "assistant", "content": "122"}]


def item(completion: str = "122", *, finish_reason: str = "stop", **payload: Any) -> RewardItem:
    payload = payload or {"answer": "122"}
    ids = [np.array(ids, "<i4").tobytes() for ids in ([4, 5, 2], [7, 8])]
    return RewardItem(completion, "37+85=", json.dumps(payload), finish_reason, *ids)


def scored(function: Any, *items: RewardItem, options: dict[str, Any] | None = None) -> list[Score]:
    scorer = Scorer(function, options)
    try:
        scorer.require(json.loads(items[0].payload))
        return scorer.score(items)
    finally:
        scorer.close()


def areal(
    prompt: str, completions: str, prompt_ids: list[int], completion_ids: list[int], answer: str, **data: Any
) -> Any:
    return {
        "reward": float(completions == answer),
        "whole": (prompt, prompt_ids, completion_ids) == ("37+85=", [7, 8], [4, 5, 2]),
        "level": data.get("level", -1),
    }


def test_areals_function_gets_one_text_and_the_ids_of_both() -> None:
    right, wrong = scored(areal, item(), item("1", answer="122", level=3))
    assert right == Score.ok(1.0, {"reward": 1.0, "whole": 1.0, "level": -1.0})
    assert wrong == Score.ok(0.0, {"reward": 0.0, "whole": 1.0, "level": 3.0})


def test_areals_function_is_told_apart_from_trls() -> None:
    def trl(
        prompts: list[str], completions: list[str], completion_ids: list[list[int]], prompt: list[str]
    ) -> list[Any]:
        return [float(len(completions) == len(prompts) == len(completion_ids) == len(prompt)) for _ in prompts]

    rows = [item(prompt="?"), item(prompt="!")]
    assert [score.reward for score in scored(trl, *rows)] == [1.0, 1.0]
    (score,) = scored(areal, item(prompt_ids=[1], answer="122"))
    assert "the payload has a key 'prompt_ids', which streamrl passes itself" in score.reason


def by_annotation(completion: list[dict], answer: str, **kwargs: Any) -> float:
    return float(completion[-1]["content"] == answer)


def by_annotation_as_text(completion: "vf.Messages", answer: str) -> float:  # type: ignore[name-defined]  # noqa: F821
    return float(completion[-1]["content"] == answer)


async def by_state(prompt, completion, answer, state, info):  # type: ignore[no-untyped-def]
    """Without annotations, as verifiers' examples are."""
    same = state["prompt"] == prompt and state["completion"] == completion and state["info"] == info
    return float(same and completion[-1]["content"] == answer)


@pytest.mark.parametrize("function", [by_annotation, by_annotation_as_text, by_state])
def test_functions_of_verifiers_get_messages(function: Any) -> None:
    right, wrong = scored(function, item(answer="122", info={"level": 1}), item("1", answer="122", info={}))
    assert (right.reward, wrong.reward) == (1.0, 0.0), (right.reason, wrong.reason)


def test_functions_of_verifiers_get_the_conversation_and_what_is_known_of_the_rollout() -> None:
    seen: list[Any] = []

    def reward(prompt: Any, completion: list[Any], state: dict[str, Any], task: str) -> float:
        seen.append((prompt, completion, task, state["is_truncated"], state["level"]))
        return 1.0

    scored(reward, item(messages=ASKED, level=3), item("1", finish_reason="length", task="sums", level=4))
    assert seen == [
        (ASKED, SAID, "default", False, 3),
        ([{"role": "user", "content": "37+85="}], [{"role": "assistant", "content": "1"}], "sums", True, 4),
    ]


@pytest.mark.parametrize("options", [{}, {"state": "won"}])
def test_a_column_or_an_option_called_state_is_one_and_the_completion_text(options: dict[str, Any]) -> None:
    def reward(completion: str, *, state: str) -> float:
        return float((completion, state) == ("122", "won"))

    row = item(answer="1") if options else item(state="won")
    assert scored(reward, row, options=options)[0].reward == 1.0


def test_a_function_that_reads_messages_out_of_a_text_says_how_to_get_them() -> None:
    def of_verifiers(completion, answer, **kwargs):  # type: ignore[no-untyped-def]
        return float(completion[-1]["content"] == answer)

    (score,) = scored(of_verifiers, item())
    assert score.reason.startswith("TypeError: string indices must be integers")
    assert score.reason.endswith("a list of messages where it is annotated so: `completion: list`")
    (score,) = scored(lambda completion: [message.get("content") for message in completion], item())
    assert score.reason.endswith("`completion: list`")
    (score,) = scored(lambda completion: int([completion]), item())
    assert "messages" not in score.reason


def test_a_parser_of_verifiers_is_bound_in_python() -> None:
    def reward(completion: list[Any], answer: str, parser: Any) -> float:
        return float(parser.parse_answer(completion) == answer)

    with pytest.raises(ConfigError, match=r"without 'parser'.*functools\.partial\(function, parser=Parser\(\)\)"):
        scored(reward, item())
    parser = SimpleNamespace(parse_answer=lambda messages: messages[-1]["content"])
    assert scored(functools.partial(reward, parser=parser), item())[0].reward == 1.0


async def custom_rm(args, sample, **kwargs):  # type: ignore[no-untyped-def]
    """As slime's documentation has it, without annotations."""
    whole = (sample.prompt, sample.tokens, sample.response_length) == ("37+85=", [7, 8, 4, 5, 2], 3)
    return {"score": args.scale * (sample.response == sample.label), "whole": whole, "status": sample.status.value}


async def batched_custom_rm(args: Any, samples: list[Any]) -> list[Any]:
    return [await custom_rm(args, sample) for sample in samples]


@pytest.mark.parametrize("function", [custom_rm, batched_custom_rm])
def test_slimes_functions_get_a_sample_and_the_options_as_their_arguments(function: Any) -> None:
    rows = item(label="122"), item("1", finish_reason="length", label="122")
    right, wrong = scored(function, *rows, options={"scale": 2.0})
    assert (right.reward, right.components) == (2.0, {"score": 2.0, "whole": 1.0})
    assert (wrong.reward, wrong.info) == (0.0, '{"status": "truncated"}')


def test_slimes_metadata_is_the_rows_else_all_of_its_columns() -> None:
    def reward(args: Any, sample: Any) -> float:
        return float(sample.metadata["level"])

    rows = item(metadata={"level": 3}), item(level=4)
    assert [score.reward for score in scored(reward, *rows)] == [3.0, 4.0]
    (score,) = scored(reward, item())
    assert score.reason == "KeyError: 'level'"
