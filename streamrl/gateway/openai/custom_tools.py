"""Tools that take a text in place of JSON (`custom`): to the model each is a function of one text. Pure.

Guarantees: the text that such a function is called with is the text that the client gets, and what a client sends back
is the call that the model made. Arguments that are anything else than one text are told as the JSON that they are; sent
back they are another call, so the conversation forks there.
"""

import json
from typing import Any, Final, Literal

import msgspec
from pydantic import BaseModel, ConfigDict

from streamrl.gateway.refusal import invalid

INPUT: Final = "input"
"""What the model's function calls the text."""
TEXT_ALONE: Final = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}
"""The schema of its arguments."""


class TextFormat(BaseModel):
    """Of the text. One that follows a grammar is refused: nothing would hold the model to it."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["text", "grammar"] = "text"

    def check(self, tool: str) -> None:
        """Raises Refusal."""
        if self.type == "grammar":
            what = f"tool {tool!a} takes a text by a grammar, and no call is held to one here"
            raise invalid("unsupported_parameter", f"{what}: leave `format` out, and say in `description`", "tools")


def arguments_of(text: str) -> str:
    """Of the model's function, as JSON."""
    return json.dumps({INPUT: text})


def text_of(arguments: str) -> str:
    """What a client gets. arguments: a JSON object, as text."""
    given = msgspec.json.decode(arguments)
    return given[INPUT] if given.keys() == {INPUT} and isinstance(given[INPUT], str) else arguments


def call_as_function(call: Any) -> Any:
    """A call of a message as the model made it; one of a function, or of nothing known, as it is."""
    custom = call.get("custom") if isinstance(call, dict) and call.get("type") == "custom" else None
    if not isinstance(custom, dict) or not isinstance(custom.get(INPUT), str):
        return call
    function = {"name": custom.get("name"), "arguments": arguments_of(custom[INPUT])}
    return {
        **{name: value for name, value in call.items() if name != "custom"},
        "type": "function",
        "function": function,
    }
