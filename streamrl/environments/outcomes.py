"""What an environment gave back, checked: messages or an end, and nothing else. Pure.

Guarantees: what passes can be sent as JSON, has roles and texts, and no number that is not finite; all else is an
EnvironmentFault that says what came instead.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from streamrl.environments.base import Done, Message, ToAgent
from streamrl.errors import ComponentError
from streamrl.rewards.base import shorten

MOST_BYTES = 2**24
"""Of what an environment says at once, as JSON."""
INFO_BYTES = 4096
"""Of the information in a verdict; of more only the size is kept."""
_OF_GYMNASIUM = (2, 4, 5)
"""Lengths of what `reset` and `step` give in gymnasium and its forerunner."""
_CLASS = '; environment.name = "gymnasium" plays such a class by options = { id = "module:Class" }'
MOST_COMPONENTS, NAME_CHARACTERS = 32, 64
"""Of a verdict, and of the name of one."""


class Fault(StrEnum):
    """How an environment failed."""

    RAISED = "raised"
    GARBAGE = "garbage"
    TIMEOUT = "timeout"
    DIED = "died"
    UNCLEAR = "unclear"
    """Its process ended while it and others were called: nobody knows who is to blame."""
    LOST = "lost"
    """Its process ended while another one was called."""

    @property
    def is_its_own(self) -> bool:
        """Whether the episode itself is to blame."""
        return self not in (Fault.UNCLEAR, Fault.LOST)


class EnvironmentFault(ComponentError):
    """An episode cannot go on, and the model is not to blame. Its text names the environment and what happened."""

    def __init__(self, kind: Fault, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.text}"


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """A `Done` on the wire. info: a JSON object, "" for nothing."""

    reward: float | None
    components: dict[str, float] = {}
    info: str = ""
    rewards: dict[str, float] = {}


Messages = list[dict[str, Any]]


def addressed(value: object, what: str) -> tuple[str, Messages]:
    """Who speaks next, "" where there is one agent, and what it is told. Raises EnvironmentFault."""
    if not isinstance(value, ToAgent):
        return "", messages_of(value, what)
    agent = value.agent
    if not isinstance(agent, str) or not 0 < len(agent) <= NAME_CHARACTERS:
        raise _garbage(f"{what}: the agent is {agent!r:.80}, not a name of at most {NAME_CHARACTERS} characters")
    return agent, messages_of(value.messages, what)


def messages_of(value: object, what: str) -> Messages:
    """what: the method that gave it, for the message. Raises EnvironmentFault."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise _garbage(f"{what} gave {type(value).__name__}, not messages, a text or Done{_hint(value)}")
    if not value:
        raise _garbage(f"{what} gave no message; the model would go on after nothing")
    if isinstance(value, tuple) and len(value) in _OF_GYMNASIUM and not all(isinstance(one, Mapping) for one in value):
        raise _garbage(
            f"{what} gave a tuple of {len(value)}, as gymnasium has it, not messages, a text or Done{_CLASS}"
        )
    messages = [_message(one, f"{what}, message {place}") for place, one in enumerate(value)]
    size = sum(map(len, messages))
    if size > MOST_BYTES:
        raise _garbage(f"{what} gave {size} bytes; at most {MOST_BYTES} are taken at once")
    return [msgspec.json.decode(one) for one in messages]


def verdict_of(done: Done, what: str) -> Verdict:
    """Raises EnvironmentFault for a reward or a component that is not a finite number."""
    for name in ("components", "info", "rewards"):
        given = getattr(done, name)
        if not isinstance(given, Mapping | None):
            raise _garbage(f"{what}: {name} of Done is a {type(given).__name__}, not a dict")
    reward = None if done.reward is None else _number(done.reward, f"{what}: the reward")
    components = {
        str(name): _number(value, f"{what}: component {name!r}") for name, value in (done.components or {}).items()
    }
    if len(components) > MOST_COMPONENTS or any(len(name) > NAME_CHARACTERS for name in components):
        raise _garbage(
            f"{what}: {len(components)} components; at most {MOST_COMPONENTS}, with names of at most "
            f"{NAME_CHARACTERS} characters"
        )
    own = (done.rewards or {}).items()
    rewards = {str(name): _number(value, f"{what}: the reward of {name!r}") for name, value in own}
    info = _json(dict(done.info), f"{what}: info", _of_libraries) if done.info else b""
    kept = info.decode() if len(info) <= INFO_BYTES else f'{{"info_bytes":{len(info)}}}'
    return Verdict(reward, components, kept, rewards)


def _hint(value: object) -> str:
    """The way out, of what people give by mistake."""
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        return "; it has a `yield`, which makes it a generator: `return` instead"
    if isinstance(value, Mapping) and "content" in value:
        return "; one message stands in a list, too"
    return "; give an object: Done(...)" if value is Done else ""


def _message(value: object, what: str) -> bytes:
    """As JSON."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _garbage(f"{what}: {type(value).__name__}, not a dict with 'role' and 'content'")
    message: Message = value
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise _garbage(f"{what}: its role is {message.get('role')!r:.80}, not a text such as 'user'")
    data = _json({**message, "content": _text(message, what)}, what)
    if len(data) > MOST_BYTES:
        raise _garbage(f"{what}: {len(data)} bytes; at most {MOST_BYTES} are taken at once")
    return data


def _text(message: Message, what: str) -> str | None:
    """Its content. None of a message of the model with calls alone; a list of OpenAI's parts is their text."""
    content = message.get("content")
    if isinstance(content, str):
        return str(content)  # numpy's texts, too
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
                raise _garbage(f"{what}: its content has a part of type {kind!r:.80}; parts with a text are taken")
        return "".join(part["text"] for part in content)
    if content is None and message["role"] == "assistant" and message.get("tool_calls"):
        return None
    raise _garbage(f"{what}: its content is {type(content).__name__}, not a text")


def _json(value: dict[str, Any], what: str, hook: Callable[[Any], Any] | None = None) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=hook)
    except (TypeError, ValueError, RecursionError) as error:
        raise _garbage(f"{what}: it cannot be written as JSON: {error}") from error


def _of_libraries(value: Any) -> Any:
    """numpy's and torch's values as lists and numbers, and all else as its text: people read it."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _number(value: object, what: str) -> float:
    if isinstance(value, str | bytes) or value is None:
        raise _garbage(f"{what} is {value!r:.80}, not a number")
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever has a value as a float: numpy's, torch's, bool
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # the last one of torch
        raise _garbage(f"{what} is a {type(value).__name__}, not a number: {error}") from error
    if not math.isfinite(number):
        raise _garbage(f"{what} is {number}")
    return number


def _garbage(text: str) -> EnvironmentFault:
    return EnvironmentFault(Fault.GARBAGE, shorten(text))
