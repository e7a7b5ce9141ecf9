"""The same answer, asked for in each dialect of the gateway, as a stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service_parts.load import ENDS
from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder

_TEXT = "1+1="
CHAT = "chat"


@dataclass(frozen=True)
class Dialect:
    """path: its route. asked: the body without the model and the number of tokens. bound: the name of that number.
    ends: one of them is in the last event of a whole answer."""

    path: str
    asked: Mapping[str, Any]
    bound: str = "max_tokens"
    ends: tuple[bytes, ...] = ENDS

    def body(self, model: str, tokens: int) -> dict[str, Any]:
        """Of a request for so many tokens."""
        if self.bound == "sampling_params":
            return {"model": model, "stream": True, **self.asked, self.bound: {"max_tokens": tokens}}
        return {"model": model, "stream": True, **self.asked, self.bound: tokens}


_RESPONSE_ENDS = (b'{"type":"response.completed"', b'{"type":"response.incomplete"')
_MESSAGES = [{"role": "user", "content": _TEXT}]
DIALECTS: Mapping[str, Dialect] = {
    "completions": Dialect("/v1/completions", {"prompt": _TEXT}),
    CHAT: Dialect("/v1/chat/completions", {"messages": _MESSAGES}),
    "responses": Dialect("/v1/responses", {"input": _TEXT, "store": False}, "max_output_tokens", _RESPONSE_ENDS),
    "messages": Dialect("/v1/messages", {"messages": _MESSAGES}, ends=(b'{"type":"message_stop"}\n\n',)),
    "generate": Dialect("/inference/v1/generate", {"token_ids": [1, 4, 5]}, "sampling_params"),
}


def write_chat_model(folder: Path) -> None:
    """A tiny model with a template, without which there is no chat. It says of a conversation its texts alone."""
    folder.mkdir(exist_ok=True)
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder)
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
