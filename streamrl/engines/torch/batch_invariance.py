"""Batch invariance: a request's result does not depend on its company. Proven on the machine at hand.

`prove_batch_invariance` proves the whole engine: for short and long prompts, ids and log-probs are equal to the bit
when a request runs alone and when it shares the batch with others that came before, with and after it. It cannot show
every shape. It takes the lengths at which the arithmetic changes (one row, a rounded key length, a second block of
keys).
"""

from collections.abc import Sequence

import numpy as np

from streamrl.engines.base import Engine
from streamrl.errors import BatchDependenceError
from streamrl.types import GenerationRequest, GenerationResult, SamplingParams

KEY_MULTIPLE = 32
"""Key lengths are rounded up to it: a whole number of vector registers, whatever the machine has."""

KEY_BLOCK = 128
"""Keys that one product with the values sums over: fewer than the library splits."""

NEW_TOKENS = 6
PROMPT_LENGTHS = (1, 5, KEY_MULTIPLE - 3, KEY_MULTIPLE + 3, KEY_BLOCK - 3, KEY_BLOCK + 40, 2 * KEY_BLOCK + 30)


def prove_batch_invariance(engine: Engine, *, vocab_size: int, max_length: int) -> None:
    """Raise BatchDependenceError, naming what differed, unless results are bit-equal alone and in company.

    The engine must be idle. Prompts are random but fixed, so that a failure can be repeated.
    """
    requests = _requests(vocab_size, max_length)
    alone = [result for request in requests for result in _drain(engine, [[request]])]
    third = -(-len(requests) // 3)
    arrivals = [requests[start : start + third] for start in range(0, len(requests), third)]
    crowd = {result.request_id: result for result in _drain(engine, arrivals)}
    for request, result in zip(requests, alone, strict=True):
        _compare(len(request.prompt_ids), result, crowd[result.request_id])


def _requests(vocab_size: int, max_length: int) -> list[GenerationRequest]:
    random = np.random.default_rng(0)
    new_tokens = min(NEW_TOKENS, max_length - 1)
    lengths = [length for length in PROMPT_LENGTHS if length + new_tokens <= max_length]
    sampling = SamplingParams(max_new_tokens=new_tokens)
    prompts = [random.integers(0, vocab_size, length, dtype=np.int32) for length in (*lengths, *lengths)]
    return [GenerationRequest(f"self-test/{i}", ids, i, sampling, ()) for i, ids in enumerate(prompts)]


def _drain(engine: Engine, arrivals: Sequence[Sequence[GenerationRequest]]) -> list[GenerationResult]:
    """Submit each batch one step after the one before; step until all are done."""
    results: list[GenerationResult] = []
    for batch in arrivals:
        engine.submit(batch)
        results += engine.step()
    while engine.has_work:
        results += engine.step()
    return results


def _compare(prompt_length: int, alone: GenerationResult, crowd: GenerationResult) -> None:
    ids_differ = not np.array_equal(alone.token_ids, crowd.token_ids)
    if not ids_differ and alone.logprobs.tobytes() == crowd.logprobs.tobytes():
        return
    first = int(np.argmax(alone.logprobs != crowd.logprobs)) if not ids_differ else 0
    what = "token ids" if ids_differ else f"log-prob of token {first}"
    one, other = (
        (alone.token_ids.tolist(), crowd.token_ids.tolist())
        if ids_differ
        else (alone.logprobs[first].item(), crowd.logprobs[first].item())
    )
    raise BatchDependenceError(
        f"the {what} of a request with a prompt of {prompt_length} tokens depends on its batch ({one} alone, "
        f"{other} in company)"
    )
