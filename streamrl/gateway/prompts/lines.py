"""A stream of prompts, as clients send it: one JSON object a line (NDJSON). Pure.

    {"key": "q-17", "prompt": "12+30=", "payload": {"answer": "42"}}

Guarantees: a line is never held longer than its limit; what a prompt may not be is a Refusal that says so, with the
key where one was read, and the stream goes on behind it.
"""

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from streamrl.errors import ConfigError
from streamrl.gateway.nesting import check_nesting
from streamrl.gateway.refusal import Refusal, invalid
from streamrl.models.tokenizer import TextTokenizer
from streamrl.tasks.base import SubmittedPrompt

KEY_LETTERS = 128


class PromptLine(BaseModel):
    """key: the client's own name for the prompt: sent again under it, it is the same one. prompt: what the model
    continues. payload: for the reward, as the task's own prompts have it."""

    model_config = ConfigDict(extra="forbid")

    key: Annotated[str, Field(min_length=1, max_length=KEY_LETTERS)]
    prompt: Annotated[str, Field(min_length=1)]
    payload: dict[str, Any] = {}


class Lines:
    """Takes bytes as they come, and gives whole lines.

    Example:
        lines = Lines(max_bytes=2**20)
        for line in lines.feed(chunk): ...
        last = lines.rest()
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that are whole now, empty ones left out. Raises Refusal for one that is too long."""
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = bytes(self._rest) + whole[0]
            self._rest.clear()
        self._rest += rest
        if max(map(len, [*whole, self._rest])) > self._max_bytes:
            what = f"a line has {self._max_bytes} bytes at most (gateway.max_body_bytes)"
            raise Refusal(413, "line_too_long", what)
        return [line for line in whole if line.strip()]

    def rest(self) -> list[bytes]:
        """What came behind the last newline, when nothing comes any more."""
        rest, self._rest = bytes(self._rest), bytearray()
        return [rest] if rest.strip() else []


class PromptReader:
    """Reads the prompts for one model. max_tokens: of a prompt. max_payload_bytes: of its payload, as JSON."""

    def __init__(self, tokenizer: TextTokenizer, max_tokens: int, max_payload_bytes: int) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._max_payload_bytes = max_payload_bytes

    def read(self, line: bytes) -> SubmittedPrompt:
        """Raises Refusal."""
        check_nesting(line)
        try:
            given = PromptLine.model_validate_json(line)
        except ValidationError as error:
            raise _fault(error) from error
        payload = _as_json(given.payload)
        if len(payload) > self._max_payload_bytes:
            what = f"{len(payload)} bytes of payload; at most {self._max_payload_bytes} (gateway.max_payload_bytes)"
            raise invalid("payload_too_long", what, "payload")
        self._check_tokens(given.prompt)
        return SubmittedPrompt(given.key, given.prompt, payload)

    def _check_tokens(self, prompt: str) -> None:
        try:
            count = len(self._tokenizer.encode(prompt))
        except ConfigError as error:
            raise invalid("not_encodable", ascii(str(error)), "prompt") from error
        if not 0 < count <= self._max_tokens:
            what = (
                f"the prompt has {count} tokens; 1 to {self._max_tokens} fit (the task's longest prompt, or "
                "gateway.max_prompt_tokens)"
            )
            raise invalid("context_length_exceeded" if count else "empty_prompt", what, "prompt")


def _as_json(payload: dict[str, Any]) -> str:
    try:
        return json.dumps(payload, separators=(",", ":"), allow_nan=False)
    except ValueError as error:  # a NaN, an infinity, or an integer of thousands of digits: no reward could read it
        raise invalid("invalid_value", f"payload: {str(error)!a}", "payload") from error


def _fault(error: ValidationError) -> Refusal:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return invalid("invalid_json", f"the line is not JSON: {first['ctx']['error']!a}")
    param = ".".join(map(str, first["loc"])) or None
    code = {"missing": "missing_parameter", "extra_forbidden": "unknown_parameter"}.get(first["type"], "invalid_value")
    return invalid(code, f"{'the line' if param is None else ascii(param)}: {first['msg']!a}", param)


def key_of(line: bytes) -> str | None:
    """The key of a line that was refused, as far as one can be seen."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or nested too deep to be read
        return None
    key = found.get("key") if isinstance(found, dict) else None
    return key if isinstance(key, str) else None
