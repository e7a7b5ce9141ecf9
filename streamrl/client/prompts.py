"""Prompts as a user writes them, made into lines for the gateway. Pure."""

import json
import secrets
from collections.abc import Mapping
from typing import Any

from streamrl.errors import RequestError
from streamrl.tasks.base import SubmittedPrompt

Ask = str | Mapping[str, Any] | SubmittedPrompt
"""A text; a mapping of `prompt`, maybe `key`, and what the reward is to have of it; or the record itself."""


def submitted(ask: Ask) -> SubmittedPrompt:
    """The record of a prompt, under a new key where none is given. Raises RequestError."""
    if isinstance(ask, SubmittedPrompt):
        return ask
    if isinstance(ask, str):
        return SubmittedPrompt(new_key(), ask)
    if not isinstance(ask, Mapping):
        raise RequestError(f"a prompt is a text or a mapping with 'prompt', not {type(ask).__name__}")
    rest = dict(ask)
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
