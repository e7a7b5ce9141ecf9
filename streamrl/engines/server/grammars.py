"""Grammars that a server follows: which of them it can, and whether it did. Pure but for the grammars.

Guarantees: a server is given no grammar that it could fail over, since some end by one; a completion that left its
grammar is an ERROR, never a result. What the server itself is sent is its contract's business.
"""

from dataclasses import replace

import numpy as np

from streamrl.errors import ConfigError
from streamrl.models.grammars import Grammars, unbounded
from streamrl.types import FinishReason, GenerationRequest, GenerationResult

_NO_BYTES = "the server follows no grammar over this tokenizer, whose tokens have no bytes of their own"


def fault_of_grammar(request: GenerationRequest, grammars: Grammars | None) -> str:
    """Why the grammar of a request cannot be followed; "" where it can, or where there is none. grammars: over the
    model's tokens; None where these are not known."""
    if request.grammar is None:
        return ""
    if grammars is None:
        return "this engine follows no grammar: the model's folder has no tokenizer"
    if request.so_far is not None and len(request.so_far.token_ids):
        # Servers begin a grammar with the first token that they sample themselves.
        return "the server cannot go on behind tokens of a grammar that were sampled elsewhere"
    try:
        if not grammars.of_bytes:
            return _NO_BYTES
        grammars.begin(unbounded(request.grammar))
    except (ValueError, ConfigError) as error:
        return f"grammar: {error}"
    return ""


def checked(request: GenerationRequest, result: GenerationResult, grammars: Grammars | None) -> GenerationResult:
    """The same; an ERROR where it is a completion that left its grammar, the number of blanks aside."""
    if request.grammar is None or grammars is None or result.finish_reason is FinishReason.ERROR:
        return result
    constraint = grammars.begin(unbounded(request.grammar))
    for place, token_id in enumerate(result.token_ids.tolist()):
        try:
            constraint.take(token_id)
        except ValueError as error:
            fault = f"the server left the grammar with token {place}, which is {token_id}: {error}"
            nothing = replace(result, token_ids=np.empty(0, np.int32), logprobs=np.empty(0, np.float32))
            return replace(nothing, version_spans=(), top_logprobs=None, finish_reason=FinishReason.ERROR, error=fault)
    return result
