"""The model's own log-probs of answers that were drawn otherwise, as a grammar does. A replica reads them as prompts.

It may serve a later version by then than the one that drew them.
"""

from collections.abc import Mapping

from streamrl.gateway.refusal import Refusal
from streamrl.gateway.token_updates import TokenUpdate
from streamrl.services.gateway.pool import Pool
from streamrl.types import FloatArray, GenerationRequest, IntArray, SamplingParams


async def own_logprobs(pool: Pool, rows: Mapping[int, IntArray], context: int) -> dict[int, FloatArray]:
    """float32 [n - 1] of each of the rows, int32 [n], from their second token on; one fewer where a row has `context`
    tokens itself. context: of a request, of which one token is sampled.

    Raises Refusal where no replica reads them."""
    prefix = pool.prefix()
    requests = {f"{prefix}/{number}": number for number in rows}
    begun = pool.begin([score_request(name, rows[number][: context - 1]) for name, number in requests.items()])
    found: dict[int, FloatArray] = {}
    try:
        while len(found) < len(rows):
            word = await begun[0].updates.get()
            if isinstance(word, Refusal):
                raise word
            if isinstance(word, TokenUpdate) and word.finish_reason:
                found[requests[word.request_id]] = _read(word)
    finally:
        pool.leave(begun)
    return found


def _read(word: TokenUpdate) -> FloatArray:
    """Raises Refusal for a row that was not read."""
    if word.prompt is None:
        what = word.error or f"the replica ended it ({word.finish_reason})"
        raise Refusal(503, "generation_failed", f"the engine could not score the answer: {what}")
    return word.prompt.logprobs


def score_request(name: str, ids: IntArray) -> GenerationRequest:
    """That a row be read. One token is sampled, to nobody's use."""
    sampling = SamplingParams(temperature=0.0, max_new_tokens=1)
    return GenerationRequest(name, ids, 0, sampling, (), prompt_logprobs=True)
