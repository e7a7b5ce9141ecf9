"""How the prompt of a chat ends: with the header of a next turn, behind its last message, or within it. Pure.

Guarantees: a message that goes on is one that can: it is of the model, has a text, and no calls behind that.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from streamrl.gateway.openai.bodies import ChatRequest
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.models.chat_template import Ending

PARAM: Final = "continue_final_message"
_MARKS: Final = ("prefix", "partial")
"""Of the message itself, in Mistral's and DeepSeek's clients, and in Moonshot's."""
_THOUGHTS: Final = ("reasoning", "reasoning_content", "thinking")
Messages = Sequence[Mapping[str, Any]]


class Continued(NamedTuple):
    """The text of a message that the model goes on with. said: as the client has it. written: as the prompt has it,
    with what was read out of it."""

    said: str
    written: str


class ChatPrompt(NamedTuple):
    """continued: None where the answer is a message of its own."""

    text: str
    continued: Continued | None = None


def ending_of(body: ChatRequest, messages: Messages) -> tuple[Messages, Ending]:
    """The messages that a prompt has, and how it ends. messages: those of the body, their contents as texts. Raises
    Refusal for a last message that cannot go on."""
    last = messages[-1]
    marked = any(last.get(mark) is True for mark in _MARKS)
    if not (body.continue_final_message or marked):
        return messages, Ending.CLOSED if body.add_generation_prompt is False else Ending.TURN
    if body.add_generation_prompt:
        what = (
            f"{PARAM} and add_generation_prompt are both true: a prompt ends within a message or with a new one's begin"
        )
        raise invalid("invalid_value", f"{what}; send one of them", PARAM)
    if last["role"] != "assistant":
        raise _cannot_go_on(f"it is of {last['role'][:40]!a}, and the model goes on with its own alone")
    if last.get("tool_calls"):
        raise _cannot_go_on("it has tool calls, which end it: send their results behind it")
    if last.get("content"):
        return messages, Ending.CONTINUED
    if any(last.get(name) for name in _THOUGHTS):
        raise _cannot_go_on("it has thoughts and no text yet: leave it out, or send a text with it")
    return messages[:-1], Ending.TURN  # nothing of it was said


def _cannot_go_on(why: str) -> Refusal:
    return invalid("invalid_value", f"the last message cannot be continued: {why}", "messages")
