"""vLLM's `/inference/v1/generate`: token ids in, token ids out. Pure.

Guarantees: what is sampled is what `/v1/completions` samples of the same ids; log-probs come in the form of a chat's,
each under `token_id:NUMBER`, as the clients of that route read them.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from streamrl.gateway.openai.answers import ChunkForm, Head, Json, captured, of_scores
from streamrl.gateway.openai.bodies import CompletionRequest, NumberOfTokens, SamplingFields, StreamOptions, TokenId
from streamrl.gateway.openai.choice import Delta
from streamrl.gateway.openai.logprobs import content_logprobs, id_name
from streamrl.gateway.openai.parameters import check
from streamrl.gateway.openai.requests import Limits, ParsedRequest
from streamrl.gateway.refusal import invalid

_OF_TEXT: Final = frozenset(
    {"detokenize", "include_stop_str_in_output", "output_kind", "skip_special_tokens", "spaces_between_special_tokens"}
)
"""Of vLLM's sampling parameters those that change the text alone, of which there is none."""


class SamplingParams(SamplingFields):
    """logprobs, prompt_logprobs, structured_outputs: as a completion has them."""

    logprobs: NumberOfTokens | None = None
    prompt_logprobs: NumberOfTokens | None = None
    structured_outputs: dict[str, Any] | None = None


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


class GenerateForm(ChunkForm):
    """Of `/inference/v1/generate`."""

    prefix = ""
    one_prompt = True

    def told(self, head: Head, choices: Sequence[Json], usage: Json | None) -> Json:
        answer: Json = {"request_id": head.id, "choices": list(choices)}
        if usage is not None and choices:
            answer |= {"prompt_logprobs": None, "kv_transfer_params": None}
        return answer if usage is None else {**answer, "usage": usage}

    def beside(self, choices: Sequence[tuple[int, Delta]], asked: ParsedRequest) -> Json:
        """As `ChunkForm.beside`."""
        return of_scores(choices, asked, None)

    def choice(self, index: int, delta: Delta, asked: ParsedRequest) -> Json:
        return {
            "index": index,
            "token_ids": delta.token_ids,
            "finish_reason": delta.finish_reason or None,
            "logprobs": {"content": content_logprobs(delta, asked.extras.top, _entry)} if asked.logprobs else None,
            "streamrl": captured(delta),
        }

    part = choice


def _entry(token_id: int, logprob: float) -> Json:
    return {"token": id_name(token_id), "logprob": logprob, "bytes": None}
