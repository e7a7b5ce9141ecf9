"""The arguments with which other systems call their reward functions, made of one item. Pure.

The names are those of each system's own documentation; a function that was written for it finds what it found there.
"""

from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from streamrl.rewards.base import RewardItem

Arguments = dict[str, object]
MESSAGES = "messages"
"""Key of a payload whose prompt is a conversation; functions that get conversations get it."""
STATE = "state"
"""The parameter by which a function of verifiers is recognised, where the rows have no such column."""


def verl_arguments(completion: str, payload: dict[str, Any]) -> Arguments:
    """What verl's reward managers pass: the ground truth of the row's `reward_model`, its source and its extra info.

    A row that is not in verl's layout gives its `ground_truth`, else its `answer`."""
    return {
        "data_source": payload.get("data_source", ""),
        "solution_str": completion,
        "ground_truth": _truth(payload),
        "extra_info": payload.get("extra_info"),
    }


def openrlhf_arguments(prompt: str, completion: str, payload: dict[str, Any]) -> Arguments:
    """What OpenRLHF passes of one completion, each under its name there: the text of prompt and completion, that of the
    prompt, and the row's `label` or `labels`, else its answer as verl's have it."""
    return {"queries": prompt + completion, "prompts": prompt, "labels": _label(payload)}


def areal_arguments(item: RewardItem) -> Arguments:
    """What AReaL passes: the texts and token ids of one prompt and of one completion, whose parameter is called
    `completions` there."""
    return {
        "prompt": item.prompt,
        "completions": item.completion,
        "prompt_ids": token_ids(item.prompt_ids),
        "completion_ids": token_ids(item.token_ids),
    }


def verifiers_arguments(item: RewardItem, payload: dict[str, Any]) -> Arguments:
    """What a rubric of verifiers passes: prompt and completion as lists of messages, the row's answer, info and task,
    and a state that has the same. The rest of the state of a rollout there, as its trajectory, is not in it."""
    shared: Arguments = {
        "prompt": payload.get(MESSAGES, [{"role": "user", "content": item.prompt}]),
        "completion": assistant_message(item.completion),
        "answer": _truth(payload),
        "info": payload.get("info", {}),
        "task": payload.get("task", "default"),
    }
    ended = {"is_completed": True, "is_truncated": item.finish_reason == "length"}
    return {**shared, STATE: {**payload, **shared, **ended}}


class SampleStatus(StrEnum):
    """How a sample of slime's ended."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"


class Sample(msgspec.Struct, kw_only=True):
    """A completion as slime's reward functions get it, by the names of its `Sample`. label: the row's `label`, else its
    answer. metadata: the row's `metadata`, else all of its columns. tokens: of prompt and completion."""

    prompt: str
    response: str
    label: object
    metadata: object
    tokens: list[int]
    response_length: int
    status: SampleStatus
    reward: object = None


def slime_sample(item: RewardItem, payload: dict[str, Any]) -> Sample:
    sampled = token_ids(item.token_ids)
    return Sample(
        prompt=item.prompt,
        response=item.completion,
        label=_label(payload),
        metadata=payload.get("metadata", payload),
        tokens=[*token_ids(item.prompt_ids), *sampled],
        response_length=len(sampled),
        status=SampleStatus.TRUNCATED if item.finish_reason == "length" else SampleStatus.COMPLETED,
    )


def assistant_message(completion: str) -> list[dict[str, str]]:
    """A completion as a conversation."""
    return [{"role": "assistant", "content": completion}]


def token_ids(packed: bytes) -> list[int]:
    """packed: as `RewardItem` has them."""
    ids: list[int] = np.frombuffer(packed, dtype="<i4").tolist()
    return ids


def _label(payload: dict[str, Any]) -> object:
    label = next((payload[name] for name in ("label", "labels") if name in payload), None)
    return _truth(payload) if label is None else label


def _truth(payload: dict[str, Any]) -> object:
    model = payload.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, dict) else None
    return payload.get("ground_truth", payload.get("answer")) if truth is None else truth
