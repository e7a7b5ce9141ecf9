"""Messages to the text of a prompt, for clients of the gateway.

Guarantees that whatever the model's template refuses is a Refusal, and says in which form it asks for tool calls.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamrl.conversations.formats.choose import call_form_of
from streamrl.errors import DataError
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.models import chat_template
from streamrl.models.chat_template import Ending


class ChatTemplate:
    """The template of the model that is served."""

    def __init__(self, template: chat_template.ChatTemplate) -> None:
        self._template = template
        self.call_form = call_form_of(template.source(tools=True)) if template.supports_tools else ""
        """In which it asks for calls, by name; "" where it asks for none that is read here."""
        source = template.source()
        self.knows_developers = "'developer'" in source or '"developer"' in source
        """Whether it has a role for them; one that has none leaves out what they say, or refuses it."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        ending: Ending = Ending.TURN,
    ) -> str:
        """The prompt of a conversation. arguments: of the template. ending: of the prompt. Raises Refusal for a
        conversation that the template does not take, or does not let go on."""
        if tools and not self._template.supports_tools:
            what = "the model's chat template does not know tools; leave them out, or train a model whose template does"
            raise invalid("tools_not_supported", what, "tools")
        try:
            return self._template.render(messages, tools, ending, **arguments or {})
        except DataError as error:
            raise invalid("template_refused", ascii(str(error))[1:-1], "messages") from error


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """That of a Hugging Face folder; None where it has none. Raises ConfigError for one that cannot be read."""
    found = chat_template.load_chat_template(folder)
    return None if found is None else ChatTemplate(found)


def no_template() -> Refusal:
    """What a client of chats is told that talks to a model without a template."""
    what = "the model comes without a chat template; use /v1/completions, or put a chat_template.jinja beside the model"
    return invalid("no_chat_template", what, "messages")
