"""What a model says in the tests of episodes: texts in turn, as an engine would give them back."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from support.data.chat_model import write_chat_tokenizer

from streamrl.environments.chat import Chat
from streamrl.environments.episode import Rollout
from streamrl.models.chat_template import load_chat_template
from streamrl.models.tokenizer import TextTokenizer, load_tokenizer
from streamrl.types import FinishReason, GenerationRequest, GenerationResult, SamplingParams, Version, VersionSpan

RUN_SEED = 7
TURNS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %}{% endfor %}"
)
TEMPLATE = TURNS + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
REWRITING = "{% set messages = messages[-1:] %}" + TEMPLATE
"""Forgets everything but the last message."""
TOOLS = "{% if tools %}{{ tools | length }}{# <tool_call> #}{% endif %}" + TEMPLATE


def chat_of(folder: Path, template: str = TEMPLATE) -> tuple[Chat, TextTokenizer]:
    write_chat_tokenizer(folder, template)
    tokenizer, found = load_tokenizer(folder), load_chat_template(folder)
    assert found is not None
    return Chat(tokenizer, found), tokenizer


def rollout_of(tokenizer: TextTokenizer, text: str = "1+1=", *, most: int = 50) -> Rollout:
    sampling = SamplingParams(max_new_tokens=most)
    request = GenerationRequest("p.0/3", tokenizer.encode(text), 1, sampling, tokenizer.eos_token_ids)
    return Rollout(request, text, {"prompt": text}, RUN_SEED)


class Model:
    """Says `texts`, one a request; one that has no room for all of it is cut off. steps: of the version of each."""

    def __init__(self, tokenizer: TextTokenizer, texts: Iterable[str], steps: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._texts = iter(texts)
        self._steps = iter(steps)
        self.asked: list[GenerationRequest] = []

    async def __call__(self, request: GenerationRequest) -> GenerationResult:
        return self.answer(request)

    def answer(self, request: GenerationRequest) -> GenerationResult:
        self.asked.append(request)
        said = self._tokenizer.encode(next(self._texts), add_special_tokens=False)
        ids = np.append(said, self._tokenizer.eos_token_ids[0]).astype(np.int32)
        whole = len(ids) <= request.sampling.max_new_tokens
        ids = ids[: request.sampling.max_new_tokens]
        logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32) / 8
        spans = (VersionSpan(0, Version(0, next(self._steps, 0))),)
        reason = FinishReason.STOP if whole else FinishReason.LENGTH
        return GenerationResult(request.request_id, ids, logprobs, spans, reason)
