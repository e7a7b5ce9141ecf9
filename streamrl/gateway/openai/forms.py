"""In which forms the answers of the served model are read: what the configuration names, or the chat template asks for.
Pure.

Guarantees: of the special tokens those alone are written into a text that its forms need, so a text of which nothing is
read has none.
"""

from typing import Final

from streamrl.conversations.formats.choose import CALL_FORMS, THOUGHT_FORMS
from streamrl.gateway.openai.call_grammars import marks_of
from streamrl.gateway.openai.chat import ChatTemplate
from streamrl.models.tokenizer import TextTokenizer

AUTO, NONE = "auto", "none"
_ANY: Final = "."
"""What any message may go on with."""


class AnswerForms:
    """calls, thoughts: the names of the forms, "" where they are not read. tool_call_parser, reasoning_parser: as
    `streamrl.config.schema.run.GatewayConfig` has them."""

    def __init__(
        self, tokenizer: TextTokenizer, template: ChatTemplate | None, tool_call_parser: str, reasoning_parser: str
    ) -> None:
        asked_for = "" if template is None else template.call_form
        self.calls = {AUTO: asked_for, NONE: ""}.get(tool_call_parser, tool_call_parser)
        self.thoughts = "" if reasoning_parser == NONE else reasoning_parser
        marks = [one.marks for name, one in CALL_FORMS.items() if name == self.calls]
        marks += [one.marks for name, one in THOUGHT_FORMS.items() if name == self.thoughts]
        self.mark = marks_of(tokenizer.added_ids(text for some in marks for text in some))
        """A mark of theirs, as it stands in a grammar."""
        self._of_calls = tokenizer.special_ids(CALL_FORMS[self.calls].marks if self.calls else ())
        self._of_thoughts = tokenizer.special_ids(THOUGHT_FORMS[self.thoughts].marks if self.thoughts else ())

    def thinks(self, prompt: str, continued: str = "") -> bool | None:
        """Whether an answer to a prompt begins within thoughts; None where these are not read. continued: the text that
        the prompt ends with, of the message that the answer goes on with."""
        if not self.thoughts:
            return None
        form = THOUGHT_FORMS[self.thoughts]
        message = form.make(prompt.removesuffix(continued.lstrip()).rstrip().endswith(form.begun))
        message.feed(continued)
        return bool(message.feed(_ANY).thoughts)

    def written(self, calls: bool) -> frozenset[int]:
        """Ids of the special tokens that a text must show. calls: whether those in it are read."""
        return self._of_thoughts | self._of_calls if calls else self._of_thoughts
