"""Messages to the text of a prompt, by the chat template of a model's folder and transformers' own renderer.

Guarantees that whatever transformers renders is rendered, to the same text, in jinja2's sandbox. The renderer alone is
imported, which takes a second and no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from streamrl.errors import ConfigError, DataError
from streamrl.models.folders import read_json

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULT, WITH_TOOLS = "default", "tool_use"

Messages = Sequence[Mapping[str, Any]]


class Ending(StrEnum):
    """How a prompt ends."""

    TURN = "turn"
    """With the header of the model's next turn."""
    CONTINUED = "continued"
    """Within the last message, behind its text: the model goes on with it."""
    CLOSED = "closed"
    """Behind the last message, as the template ends it."""


class ChatTemplate:
    """The template of a model. special_tokens: their texts by name, as it may use them.

    Example:
        template = load_chat_template(folder)
        text = template.render([{"role": "user", "content": "2+2?"}], enable_thinking=False)

    source: the template, or several by name, of which `tool_use` is taken where there are tools. Raises ConfigError for
    one that jinja2 cannot read.
    """

    def __init__(self, source: str | Mapping[str, str], special_tokens: Mapping[str, str] | None = None) -> None:
        self._sources = {DEFAULT: source} if isinstance(source, str) else dict(source)
        self._special_tokens = dict(special_tokens or {})
        for text in self._sources.values():
            _require_readable(text)
        self.supports_tools = any("tools" in text for text in self._sources.values())
        """Whether it looks at tools at all."""

    def source(self, tools: bool = False) -> str:
        """The template's text, for conversations with tools or without."""
        first, second = (WITH_TOOLS, DEFAULT) if tools else (DEFAULT, WITH_TOOLS)
        found = self._sources.get(first, self._sources.get(second))
        return found if found is not None else next(iter(self._sources.values()))

    def render(
        self,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None = None,
        ending: Ending = Ending.TURN,
        /,
        **arguments: object,
    ) -> str:
        """The prompt of a conversation. ending: of the prompt; with `CONTINUED` the content of the last message is a
        text. arguments: what the template asks for beside, for instance `enable_thinking`. Raises DataError for
        messages that it does not take, and for a last message whose end it does not write as it is."""
        given, goes_on = {**self._special_tokens, **arguments}, ending is Ending.CONTINUED
        try:
            (text,), _ = _renderer()(
                conversations=[list(map(_without_nulls, messages))],
                tools=[dict(tool) for tool in tools] if tools else None,
                chat_template=self.source(bool(tools)),
                add_generation_prompt=ending is Ending.TURN,
                continue_final_message=goes_on,
                **given,
            )
        except Exception as error:  # a template is a program of the model's, and raises what it likes
            if goes_on and isinstance(error, ValueError):
                raise DataError(_NOT_CONTINUED) from error  # transformers' own words have the whole prompt in them
            raise DataError(f"the model's chat template does not take these messages: {error}") from error
        if goes_on and not _ends_as_sent(text, messages[-1]["content"]):
            raise DataError(_NOT_CONTINUED)
        return str(text)


_NOT_CONTINUED = (
    "the model's chat template does not write the end of the last message as it was sent, so the model cannot go on "
    "with it: send its text without white space at the end and without marks of thoughts, or do not have it continued"
)


def _without_nulls(message: Mapping[str, Any]) -> dict[str, Any]:
    """As transformers gives a message to a template: many templates write a null as the word None."""
    return {name: value for name, value in message.items() if value is not None}


def _ends_as_sent(prompt: str, content: str) -> bool:
    # Where a template trims, transformers trims the end of the prompt. What is trimmed at the front changes no place.
    return prompt.endswith(content.lstrip() or content)


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """That of a Hugging Face folder: `chat_template.jinja` and `additional_chat_templates/`, `chat_template.json`, or
    the entry in `tokenizer_config.json`. None where it has none."""
    names = read_json(folder / "tokenizer_config.json")
    source = _files(folder) or _named(read_json(folder / "chat_template.json").get("chat_template"))
    source = source or _named(names.get("chat_template"))
    if not source:
        return None
    names = {**read_json(folder / "special_tokens_map.json"), **names}
    return ChatTemplate(source, {name: text for name in SPECIAL_TOKENS if (text := _text(names.get(name))) is not None})


def _require_readable(source: str) -> None:
    """Compile it: transformers keeps what it compiled, so nothing is done twice."""
    try:
        _renderer()(conversations=[], chat_template=source)
    except TemplateError as error:
        raise ConfigError(f"the chat template of the model is none that jinja2 can read: {error}") from error


def _renderer() -> Callable[..., Any]:
    # Here and not above: it takes a second, which a model without a template has no use for.
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template


def _files(folder: Path) -> dict[str, str]:
    files = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    named = {path.stem: path.read_text(encoding="utf-8") for path in files}
    main = folder / "chat_template.jinja"
    return {**named, DEFAULT: main.read_text(encoding="utf-8")} if main.is_file() else named


def _named(template: object) -> dict[str, str]:
    """The sources in what a JSON file says: a text, or a list of named ones."""
    if isinstance(template, str):
        return {DEFAULT: template}
    entries = template if isinstance(template, list) else []
    found = {one.get("name"): one.get("template") for one in entries if isinstance(one, dict)}
    return {str(name): text for name, text in found.items() if isinstance(text, str)}


def _text(token: object) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
