"""What an environment gave back, checked: messages or an end, and nothing else. Pure.

Guarantees: what passes can be sent as JSON, has roles and texts, and no number that is not finite; all else is an
EnvironmentFault that says what came instead.
"""

import math
from collections.abc import Mapping, Sequence
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
        raise _garbage(f"{what} gave {type(value).__name__}, not messages, a text or Done")
    if not value:
        raise _garbage(f"{what} gave no message; the model would go on after nothing")
    return [_message(one, f"{what}, message {place}") for place, one in enumerate(value)]


def verdict_of(done: Done, what: str) -> Verdict:
    """Raises EnvironmentFault for a reward or a component that is not a finite number."""
    reward = None if done.reward is None else _number(done.reward, f"{what}: the reward")
    components = {str(name): _number(value, f"{what}: component {name!r}") for name, value in done.components.items()}
    if len(components) > MOST_COMPONENTS or any(len(name) > NAME_CHARACTERS for name in components):
        raise _garbage(
            f"{what}: {len(components)} components; at most {MOST_COMPONENTS}, with names of at most "
            f"{NAME_CHARACTERS} characters"
        )
    rewards = {str(name): _number(value, f"{what}: the reward of {name!r}") for name, value in done.rewards.items()}
    info = _json(dict(done.info), what) if done.info else ""
    kept = info if len(info.encode()) <= INFO_BYTES else f'{{"info_bytes":{len(info)}}}'
    return Verdict(reward, components, kept, rewards)


def _message(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _garbage(f"{what}: {type(value).__name__}, not a dict with 'role' and 'content'")
    message: Message = value
    if not isinstance(message.get("role"), str) or not message["role"]:
        raise _garbage(f"{what}: its role is {message.get('role')!r:.80}, not a text such as 'user'")
    if not isinstance(message.get("content"), str | list | type(None)):
        raise _garbage(f"{what}: its content is {type(message.get('content')).__name__}, not a text")
    decoded: dict[str, Any] = msgspec.json.decode(_json(dict(message), what))
    return decoded


def _json(value: dict[str, Any], what: str) -> str:
    try:
        data = msgspec.json.encode(value)
        text = data.decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise _garbage(f"{what}: it cannot be written as JSON: {error}") from error
    if len(data) > MOST_BYTES:
        raise _garbage(f"{what}: {len(data)} bytes; at most {MOST_BYTES} are taken at once")
    return text


def _number(value: object, what: str) -> float:
    if isinstance(value, str | bytes) or value is None:
        raise _garbage(f"{what} is {value!r:.80}, not a number")
    try:
        number = float(value)  # type: ignore[arg-type]  # whatever has a value as a float: numpy's, torch's, bool
    except (TypeError, ValueError, OverflowError) as error:
        raise _garbage(f"{what} is a {type(value).__name__}, not a number: {error}") from error
    if not math.isfinite(number):
        raise _garbage(f"{what} is {number}")
    return number


def _garbage(text: str) -> EnvironmentFault:
    return EnvironmentFault(Fault.GARBAGE, shorten(text))
