"""vLLM's `/tokenize` and `/detokenize`. Pure."""

from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from streamrl.gateway.openai.answers import Json
from streamrl.gateway.openai.bodies import ChatRequest, CustomTool, Message, TokenId, Tool
from streamrl.gateway.openai.requests import Limits, Reader
from streamrl.gateway.refusal import invalid
from streamrl.models.tokenizer import TextTokenizer


class TokenizeRequest(BaseModel):
    """A text (`prompt`), or a conversation (`messages`). add_special_tokens: by default of a text alone, since a chat
    template writes its own. add_generation_prompt, continue_final_message: of a conversation, as a chat has them."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    tools: list[Tool | CustomTool] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(BaseModel):
    """Ids to be decoded."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    tokens: list[TokenId]


def tokenized(body: TokenizeRequest, reader: Reader, tokenizer: TextTokenizer, limits: Limits) -> Json:
    """The answer. Raises Refusal."""
    if body.model is not None:
        reader.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise invalid("missing_parameter", "give a prompt or messages, and not both", "prompt")
    if body.prompt is not None:
        _check_text(body)
        special = body.add_special_tokens is not False
        ids = reader.encoded(body.prompt, "prompt", add_special_tokens=special).tolist()
    else:
        chat = ChatRequest(
            model=limits.model,
            messages=body.messages or [],
            tools=body.tools,
            chat_template_kwargs=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
        special = body.add_special_tokens is True
        ids = reader.encoded(reader.prompt_of(chat).text, "messages", add_special_tokens=special).tolist()
    strings = [tokenizer.decode(np.array([token_id]), special_tokens=True) for token_id in ids]
    return {
        "count": len(ids),
        "max_model_len": limits.context,
        "tokens": ids,
        "token_strs": strings if body.return_token_strs else None,
    }


def _check_text(body: TokenizeRequest) -> None:
    """Raises Refusal for what only a conversation can have."""
    for name, value in {
        "add_generation_prompt": body.add_generation_prompt is False,
        "continue_final_message": body.continue_final_message,
    }.items():
        if value:
            raise invalid("invalid_value", f"{name} is of messages, and a prompt is a text as it stands", name)


def detokenized(body: DetokenizeRequest, reader: Reader, tokenizer: TextTokenizer) -> Json:
    """The answer. Raises Refusal."""
    if body.model is not None:
        reader.check_model(body.model)
    reader.check_ids(body.tokens, "tokens")
    return {"prompt": tokenizer.decode(np.array(body.tokens, np.int32), special_tokens=True)}
