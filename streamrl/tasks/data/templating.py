"""From what a row says to the prompt that the model gets: its text and its token ids, templated once."""

from typing import NamedTuple

from streamrl.config.schema.data import DataConfig
from streamrl.errors import ConfigError, DataError
from streamrl.models.chat_template import ChatTemplate
from streamrl.models.tokenizer import TextTokenizer
from streamrl.tasks.data.columns import TEXT_AS_IT_IS, BadRow, Item, Message
from streamrl.types import IntArray


class Rendered(NamedTuple):
    """ids: int32 [n]. by_template: whether the text has its special tokens already."""

    text: str
    ids: IntArray
    by_template: bool


class Renderer:
    """Renders what rows say for one model. template: None where the model has none."""

    def __init__(self, data: DataConfig, tokenizer: TextTokenizer, template: ChatTemplate | None) -> None:
        self._data = data
        self._tokenizer = tokenizer
        self._template = template
        self._arguments = data.chat_template_kwargs or {}

    def render(self, item: Item) -> Rendered:
        """Raises BadRow for what the template or the tokenizer does not take, and for a prompt without tokens."""
        messages = self._messages(item)
        text = item.prompt if messages is None else self._by_template(messages, item)
        try:
            ids = self._tokenizer.encode(str(text), add_special_tokens=messages is None)
        except ConfigError as error:
            raise BadRow(f"column {item.column!r}: {error}") from error
        if not len(ids):
            raise BadRow(f"column {item.column!r} encodes to no tokens; leave the row out")
        return Rendered(str(text), ids, messages is not None)

    def _messages(self, item: Item) -> list[Message] | None:
        """The messages that go through the template; None for a text that the model continues as it stands."""
        if isinstance(item.prompt, str) and not self._as_chat(item.column):
            return None
        given: list[Message] = (
            [{"role": "user", "content": item.prompt}] if isinstance(item.prompt, str) else item.prompt
        )
        system = item.system or self._data.system
        if system and given[0]["role"] not in ("system", "developer"):
            return [{"role": "system", "content": system}, *given]
        return given

    def _as_chat(self, column: str) -> bool:
        if self._data.as_chat is not None:
            return self._data.as_chat
        if self._data.system is not None:
            return True
        return self._template is not None and column not in TEXT_AS_IT_IS

    def _by_template(self, messages: list[Message], item: Item) -> str:
        if self._template is None:
            raise BadRow(
                f"column {item.column!r} is a conversation, and the model has no chat template; put a "
                "chat_template.jinja beside the model, or give prompts as text"
            )
        try:
            return self._template.render(messages, item.tools, **{**self._arguments, **item.template_arguments})
        except DataError as error:
            raise BadRow(f"column {item.column!r}: {error}") from error
