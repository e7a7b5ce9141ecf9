"""Held-out answers on their way from a replica to the reward stage: msgpack of a closed schema."""

import msgspec

from streamrl.evaluation import Evaluation
from streamrl.rewards.base import RewardItem


class Answers(msgspec.Struct, frozen=True, array_like=True):
    """items: completions to score. errors: prompts without an answer, and why."""

    items: list[RewardItem]
    errors: list[str]


def encode(evaluation: Evaluation) -> bytes:
    return msgspec.msgpack.encode(Answers(evaluation.items, evaluation.errors))


def decode(data: bytes) -> Answers:
    return msgspec.msgpack.decode(data, type=Answers)
