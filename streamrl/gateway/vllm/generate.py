"""vLLM's `/inference/v1/generate`: token ids in, token ids out. Pure.

Guarantees: what is sampled is what `/v1/completions` samples of the same ids; log-probs come in the form of a chat's,
each under `token_id:NUMBER`, as the clients of that route read them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from streamrl.gateway.openai.answers import ChunkForm, Head, Json, captured
from streamrl.gateway.openai.choice import Delta
from streamrl.gateway.openai.parameters import check
from streamrl.gateway.openai.requests import (
    CompletionRequest,
    Limits,
    ParsedRequest,
    SamplingFields,
    StreamOptions,
    TokenId,
)
from streamrl.gateway.refusal import invalid

_OF_TEXT: Final = frozenset(
    {"detokenize", "include_stop_str_in_output", "output_kind", "skip_special_tokens", "spaces_between_special_tokens"}
)
"""Of vLLM's sampling parameters those that change the text alone, of which there is none."""


class SamplingParams(SamplingFields):
    """logprobs: 0 or 1, for those of the sampled tokens; alternatives are not known."""

    logprobs: Annotated[int, Field(strict=True, ge=0, le=1)] | None = None


class GenerateRequest(BaseModel):
    """The body. model: the one that is served, where it is named. features: pictures, of which there are none."""

    model_config = ConfigDict(extra="allow")

    token_ids: Annotated[list[TokenId], Field(min_length=1)]
    sampling_params: SamplingParams = SamplingParams()
    model: str | None = None
    request_id: Annotated[str, Field(max_length=256)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    features: None = None
    return_token_ids: bool | None = None

    def completion(self, limits: Limits) -> CompletionRequest:
        """The same, asked of `/v1/completions`. Raises Refusal."""
        given = self.sampling_params
        params = {name: value for name, value in (given.model_extra or {}).items() if name not in _OF_TEXT}
        # What neither has a field for: a name of the completion's own must not take the place of what is made here.
        check({**(self.model_extra or {}), **params})
        room = limits.context - len(self.token_ids)
        if room < 1:
            what = f"{len(self.token_ids)} tokens of prompt leave no room; the context has {limits.context}"
            raise invalid("context_length_exceeded", what, "token_ids")
        fields = {name: value for name in SamplingParams.model_fields if (value := getattr(given, name)) is not None}
        return CompletionRequest(
            model=self.model or limits.model,
            prompt=self.token_ids,
            stream=self.stream,
            stream_options=self.stream_options,
            **{"max_tokens": room, **fields},
        )

    def told(self, asked: ParsedRequest) -> ParsedRequest:
        """How it is answered."""
        return replace(asked, logprobs=self.sampling_params.logprobs is not None)


class GenerateForm(ChunkForm):
    """Of `/inference/v1/generate`."""

    prefix = ""
    one_prompt = True

    def told(self, head: Head, choices: Sequence[Json], usage: Json | None) -> Json:
        answer: Json = {"request_id": head.id, "choices": list(choices)}
        if usage is not None and choices:
            answer |= {"prompt_logprobs": None, "kv_transfer_params": None}
        return answer if usage is None else {**answer, "usage": usage}

    def choice(self, index: int, delta: Delta, asked: ParsedRequest) -> Json:
        return {
            "index": index,
            "token_ids": delta.token_ids,
            "finish_reason": delta.finish_reason or None,
            "logprobs": {"content": _logprobs(delta)} if asked.logprobs else None,
            "streamrl": captured(delta),
        }

    part = choice


def _logprobs(delta: Delta) -> list[dict[str, Any]]:
    pairs = zip(delta.token_ids, delta.logprobs, strict=True)
    return [
        {"token": f"token_id:{token_id}", "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token_id, logprob in pairs
    ]
