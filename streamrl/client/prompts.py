"""Prompts as a user writes them, made into lines for the gateway. Pure."""

import json
import secrets
from collections.abc import Mapping
from typing import Any

from streamrl.errors import RequestError
from streamrl.tasks.base import SubmittedPrompt

PromptInput = str | Mapping[str, Any] | SubmittedPrompt
"""A prompt as a user writes it: a text; a mapping with `prompt`, optionally `key`, and items for the reward function;
or the record itself."""


def submitted(given: PromptInput) -> SubmittedPrompt:
    """The record of a prompt, under a new key where none is given. Raises RequestError."""
    if isinstance(given, SubmittedPrompt):
        return given
    if isinstance(given, str):
        return SubmittedPrompt(new_key(), given)
    if not isinstance(given, Mapping):
        raise RequestError(f"a prompt is a text or a mapping with 'prompt', not {type(given).__name__}")
    rest = dict(given)
    prompt, key = rest.pop("prompt", None), rest.pop("key", None)
    if not isinstance(prompt, str) or not isinstance(key, str | None):
        raise RequestError(f"'prompt' and 'key' are texts; given {prompt!r:.80} and {key!r:.80}")
    try:
        payload = json.dumps(rest, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RequestError(f"what the reward is to have of prompt {prompt!r:.80} is no JSON: {error}") from error
    return SubmittedPrompt(new_key() if key is None else key, prompt, payload)


def new_key() -> str:
    """One that nobody else has."""
    return secrets.token_hex(12)


def line_of(prompt: SubmittedPrompt) -> bytes:
    """As the gateway reads it."""
    told = {"key": prompt.key, "prompt": prompt.text, "payload": json.loads(prompt.payload)}
    return json.dumps(told, separators=(",", ":")).encode() + b"\n"
