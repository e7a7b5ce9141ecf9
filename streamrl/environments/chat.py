"""Between messages and exact ids, for one model: its chat template, its tokenizer, its form of tool calls. Pure.

The same as the gateway does for a session: ids that were sampled are never had from text again, and a message of the
model stands in the next prompt as it was sampled.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from streamrl.conversations.formats.choose import GLM, HERMES, call_form_of
from streamrl.conversations.formats.tagged import BEGIN
from streamrl.conversations.memory import Memory
from streamrl.conversations.tool_calls import MessageReader
from streamrl.environments.base import Message
from streamrl.errors import DataError
from streamrl.models.chat_template import ChatTemplate
from streamrl.models.tokenizer import TextTokenizer
from streamrl.types import FinishReason, GenerationResult, IntArray


class ChatPrompt(NamedTuple):
    """text: of the whole prompt. ids: int32 [n]. num_begun: how many of them a branch of the conversation has. opening:
    with how many of them that branch began; 0 where the prompt continues none."""

    text: str
    ids: IntArray
    num_begun: int = 0
    opening: int = 0


class Said(NamedTuple):
    """What the model said. text: as it was sampled, without its end token. shown: with it. message: for the
    environment."""

    text: str
    shown: str
    message: dict[str, Any]


class Chat:
    """See the module. arguments: what the template is given beside the messages."""

    def __init__(
        self, tokenizer: TextTokenizer, template: ChatTemplate, arguments: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._arguments = dict(arguments or {})
        source = template.source(tools=True)
        self.reads_tool_calls = template.supports_tools and BEGIN in source
        # Of the forms between these marks: those of others may be special tokens, which a text here leaves out.
        self._call_form = GLM if call_form_of(source) == GLM else HERMES

    @cached_property
    def _longest(self) -> int:
        """Characters of the longest token."""
        return max(map(len, self._tokenizer.vocabulary()))

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], memory: Memory, most: int
    ) -> ChatPrompt | None:
        """What the model is given next. None where that has more than `most` tokens by the mere length of its text:
        tokens of many megabytes would take gigabytes.

        Raises DataError for messages that the template does not take, and for tools where it knows none. Raises
        ConfigError for text that the vocabulary cannot express."""
        if tools and not self._template.supports_tools:
            raise DataError("the environment has tools, and the model's chat template does not know any")
        text = self._template.render(memory.recalled(messages), tools or None, **self._arguments)
        begun, rest = memory.begun(text)
        if len(rest) > most * self._longest:
            return None
        more = self._tokenizer.encode(rest, add_special_tokens=False) if rest else np.empty(0, np.int32)
        ids = np.concatenate((np.array(begun, np.int32), more))
        return ChatPrompt(text, ids, len(begun), memory.opening(ids))

    def said(self, result: GenerationResult, name: str, tools: Sequence[Mapping[str, Any]]) -> Said:
        """name: of the turn, unique in the run."""
        text = self._tokenizer.decode(result.token_ids)
        last = result.token_ids[-1:]
        hidden = result.finish_reason is FinishReason.STOP and not self._tokenizer.decode(last)
        shown = text + self._tokenizer.decode(last, special_tokens=True) if hidden else text
        return Said(text, shown, self._message(text, result, name, tools))

    def _message(
        self, text: str, result: GenerationResult, name: str, tools: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        if not tools or not self.reads_tool_calls:
            return {"role": "assistant", "content": text}
        schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
        parsed = MessageReader(name, schemas, call_form=self._call_form).parse(0, text, result.finish_reason)
        if not parsed.calls:
            return {"role": "assistant", "content": text}
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": msgspec.json.decode(call.arguments)},
            }
            for call in parsed.calls
        ]
        return {"role": "assistant", "content": parsed.content, "tool_calls": calls}
