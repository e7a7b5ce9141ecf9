"""What a request may change of the distribution that its tokens are drawn from. Plain data: no torch, no Ray.

They are imported from `streamrl.types`, beside the request that carries them.
"""

from enum import StrEnum

import msgspec


class GrammarKind(StrEnum):
    """How a grammar is written: a JSON schema, a regular expression of the whole text, or llguidance's Lark."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """What the text of a completion may be."""

    kind: GrammarKind
    text: str


class Adjustments(msgspec.Struct, frozen=True, kw_only=True):
    """What changes the logits of a completion before the temperature divides them, as vLLM does it, in this order:

    logit_bias: (token id, what is added). repetition_penalty: of each token that the prompt or the completion has, a
    positive logit is divided by it and another multiplied. frequency_penalty: taken from it as often as the completion
    has the token; presence_penalty: once, where it has it. min_tokens: before so many tokens no stop token is drawn.
    """

    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0
