"""What a client wants changed of the logits: bias, penalties, a least length. Pure.

Guarantees: neutral values ask for nothing; what is out of range is refused by name.
"""

from collections.abc import Iterator
from typing import Final

from streamrl.gateway.openai.bodies import SamplingFields
from streamrl.gateway.refusal import invalid
from streamrl.types import Adjustments

MOST_BIASED: Final = 1024
"""Tokens of a `logit_bias`."""
_NEUTRAL: Final = Adjustments()


def adjustments_of(body: SamplingFields, vocab_size: int, most: int) -> Adjustments | None:
    """None where nothing is asked for. most: tokens that the completion may have. Raises Refusal."""
    if (body.min_tokens or 0) > most:
        what = f"min_tokens {body.min_tokens} is more than the {most} that a completion may have"
        raise invalid("invalid_value", f"{what}; lower it, or raise max_tokens", "min_tokens")
    asked = Adjustments(
        logit_bias=_bias(body, vocab_size),
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        frequency_penalty=body.frequency_penalty or 0.0,
        presence_penalty=body.presence_penalty or 0.0,
        min_tokens=body.min_tokens or 0,
    )
    return None if asked == _NEUTRAL else asked


def asking_for_adjustments(asked: Adjustments) -> Iterator[str]:
    """The parameters that do."""
    yield from (name for name in Adjustments.__struct_fields__ if getattr(asked, name) != getattr(_NEUTRAL, name))


def _bias(body: SamplingFields, vocab_size: int) -> tuple[tuple[int, float], ...]:
    given = body.logit_bias or {}
    if len(given) > MOST_BIASED:
        what = f"logit_bias names {len(given)} tokens; at most {MOST_BIASED}"
        raise invalid("invalid_value", what, "logit_bias")
    for token_id in given:
        if token_id >= vocab_size:
            what = f"logit_bias names the token {token_id}; the model has {vocab_size}, from 0 on"
            raise invalid("invalid_value", what, "logit_bias")
    return tuple(sorted(given.items()))
