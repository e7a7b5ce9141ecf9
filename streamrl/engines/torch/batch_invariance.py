"""Batch invariance: a request's result does not depend on its company. Measured and proven on the machine at hand.

A matrix library takes another kernel for a product of few rows, and the last bits differ. Where it switches depends on
the machine: MKL keeps rows independent from 4 rows on with AVX2, and from 3 to 16 rows on with AVX-512, the more the
longer the inner length. `independent_rows` measures that number, and the engine pads its products to it.

`prove_batch_invariance` proves the whole engine: for short and long prompts, ids and log-probs are equal to the bit
when a request runs alone and when it shares the batch with others that came before, with and after it. It cannot show
every shape. It takes the lengths at which the arithmetic changes (one row, a rounded key length, a second block of
keys).
"""

from collections.abc import Collection, Sequence

import numpy as np
import torch

from streamrl.engines.base import Engine
from streamrl.errors import ComponentError
from streamrl.types import GenerationRequest, GenerationResult, SamplingParams

KEY_MULTIPLE = 32
"""Key lengths are rounded up to it: a whole number of vector registers, whatever the machine has."""

KEY_BLOCK = 128
"""Keys that one product with the values sums over: fewer than the library splits."""

NEW_TOKENS = 6
PROMPT_LENGTHS = (1, 5, KEY_MULTIPLE - 3, KEY_MULTIPLE + 3, KEY_BLOCK - 3, KEY_BLOCK + 40, 2 * KEY_BLOCK + 30)

LEAST_ROWS = 4
"""The answer is at least this: 1, 2 and 3 rows differ with AVX2 and AVX-512."""

MOST_ROWS = 64
"""Rows of the product that others are compared with. Kernels for few rows end below half of it."""

MOST_COLUMNS = 4096
"""Columns of a product that is measured. The switch depends on the inner length, not on the number of columns."""


def independent_rows(products: Collection[tuple[int, int]], dtype: torch.dtype) -> int:
    """The fewest rows, from `LEAST_ROWS` to half of `MOST_ROWS`, from which on every product keeps rows independent.

    products: [inner length, columns] of each weight that the engine multiplies with, on the CPU.
    """
    return max((_floor(inner, columns, dtype) for inner, columns in set(products)), default=LEAST_ROWS)


def _floor(inner: int, columns: int, dtype: torch.dtype) -> int:
    random = torch.Generator().manual_seed(inner)
    columns = min(columns, MOST_COLUMNS)
    # The engine's weights lie as [columns, inner] in memory too.
    weight = torch.randn(columns, inner, generator=random).to(dtype).t()
    rows = torch.randn(MOST_ROWS, inner, generator=random).to(dtype)
    whole = torch.mm(rows, weight)
    for number in range(MOST_ROWS // 2 - 1, LEAST_ROWS - 1, -1):
        if not torch.equal(torch.mm(rows[:number], weight), whole[:number]):
            return number + 1
    return LEAST_ROWS


def prove_batch_invariance(engine: Engine, *, vocab_size: int, max_length: int) -> None:
    """Raise ComponentError, naming what differed, unless results are bit-equal alone and in company.

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
    raise ComponentError(
        f"torch engine, self-test: the {what} of a request with a prompt of {prompt_length} tokens depends on "
        f"its batch ({one} alone, {other} in company), so generation is not deterministic on this machine. "
        "Run the engine with one thread (rollout.threads = 1), or set rollout.deterministic = false"
    )
