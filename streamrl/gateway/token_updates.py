"""What a replica tells the gateway of its guests: plain data, many in one message."""

from collections.abc import Sequence

import msgspec

from streamrl.types import GenerationResult, PartialTokens, PromptLogprobs, RouteArray, TopLogprobs, VersionSpan

GIVEN_UP = "given_up"
"""In the place of a reason to finish: a replica gave up what its gateway did not ask about for too long."""


class TokenUpdate(msgspec.Struct, frozen=True, array_like=True):
    """Further tokens of one request, from its token `start` on, or its end.

    spans: (start, incarnation, step) of the versions that sampled them, `start` counted from the first sampled token.
    finish_reason: "" as long as it goes on; else as `streamrl.types.FinishReason`, or `GIVEN_UP`. error: text with
    reason "error".
    top_logprobs: in the places of these tokens, where they were asked for. prompt: as `streamrl.types.PartialTokens`.
    routes: of prompt and completion, as `streamrl.types.GenerationResult`, with the end.
    """

    request_id: str
    start: int
    token_ids: list[int]
    logprobs: list[float]
    spans: list[tuple[int, int, int]]
    finish_reason: str = ""
    error: str = ""
    top_logprobs: TopLogprobs | None = None
    prompt: PromptLogprobs | None = None
    routes: RouteArray | None = None


def update_of(tokens: PartialTokens) -> TokenUpdate:
    """Of a request that goes on."""
    ids, logprobs = tokens.token_ids.tolist(), tokens.logprobs.tolist()
    spans = _plain(tokens.version_spans)
    top_logprobs, prompt = tokens.top_logprobs, tokens.prompt
    return TokenUpdate(tokens.request_id, tokens.start, ids, logprobs, spans, "", "", top_logprobs, prompt)


def final_update(result: GenerationResult, *, routes: bool = False) -> TokenUpdate:
    """Of a request that ended: all its tokens. Who has some of them takes the rest. routes: whether they are told."""
    ids, logprobs = result.token_ids.tolist(), result.logprobs.tolist()
    spans = _plain(result.version_spans)
    ended, top_logprobs, prompt = (result.finish_reason.value, result.error), result.top_logprobs, result.prompt
    told = result.routes if routes else None
    return TokenUpdate(result.request_id, 0, ids, logprobs, spans, *ended, top_logprobs, prompt, told)


def given_up(request_id: str) -> TokenUpdate:
    """Nothing more comes of a request, and what was not told of it before is gone."""
    return TokenUpdate(request_id, 0, [], [], [], GIVEN_UP)


def _plain(spans: Sequence[VersionSpan]) -> list[tuple[int, int, int]]:
    return [(span.start, *span.version) for span in spans]
