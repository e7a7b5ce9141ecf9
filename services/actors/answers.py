"""Held-out answers on their way from a replica to the reward stage: msgpack of a closed schema."""

import msgspec

from streamrl.evaluation import Evaluation


def encode(evaluation: Evaluation) -> bytes:
    return msgspec.msgpack.encode(evaluation)


def decode(data: bytes) -> Evaluation:
    return msgspec.msgpack.decode(data, type=Evaluation)
