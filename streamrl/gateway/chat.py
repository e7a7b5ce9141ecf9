"""Messages to the text of a prompt, by the chat template that a model comes with.

Guarantees that a template runs in jinja2's sandbox, with the names that Hugging Face's templates know (transformers'
`apply_chat_template`), and that whatever it refuses is a Refusal. Imports no transformers, which would bring torch.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, meta
from jinja2.ext import LoopControlExtension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from streamrl.errors import ConfigError
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.gateway.tool_calls import BEGIN
from streamrl.models.folders import read_json

_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """One template. special_tokens: their texts by name, as it may use them.

    Raises ConfigError for a source that is no template.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
            wanted = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ConfigError(f"the chat template of the model is none that jinja2 can read: {error}") from error
        self._special_tokens = dict(special_tokens or {})
        self.supports_tools = "tools" in wanted
        """Whether it looks at tools at all."""
        self.tool_calls_are_read = self.supports_tools and BEGIN in source
        """Whether it asks for calls in a form that is read here."""

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """The prompt of a conversation whose next turn is the model's. Raises Refusal for one that the template does
        not take."""
        if tools and not self.supports_tools:
            what = "the model's chat template does not know tools; leave them out, or train a model whose template does"
            raise invalid("tools_not_supported", what, "tools")
        try:
            return self._template.render(
                messages=messages, tools=tools or None, add_generation_prompt=True, **self._special_tokens
            )
        except Exception as error:  # a template is a program of the model's, and raises what it likes
            what = f"the model's chat template does not take these messages: {str(error)!a}"
            raise invalid("template_refused", what, "messages") from error


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """That of a Hugging Face folder (`chat_template.jinja`, or in `tokenizer_config.json`); None where it has none."""
    names = read_json(folder / "tokenizer_config.json")
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else _named(names.get("chat_template"))
    if source is None:
        return None
    return ChatTemplate(source, {name: text for name in _SPECIAL if (text := _text(names.get(name))) is not None})


def no_template() -> Refusal:
    """What a client of chats is told that talks to a model without a template."""
    what = "the model comes without a chat template; use /v1/completions, or put a chat_template.jinja beside the model"
    return invalid("no_chat_template", what, "messages")


def _named(template: object) -> str | None:
    """The source in what `tokenizer_config.json` says: a text, or a list of named ones."""
    if isinstance(template, list):
        found = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = found.get("tool_use") or found.get("default")
    return template if isinstance(template, str) else None


def _text(token: object) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _tojson(value: Any, indent: int | None = None) -> str:
    """As templates expect it: letters stay letters, and nothing is escaped for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
