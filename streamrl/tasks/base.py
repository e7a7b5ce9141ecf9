"""What a task is: numbered prompts to train on, and others that are only ever scored.

A task is deterministic and stateless to its callers: the same index gives the same prompt in every process
and in every run of the same data. It knows text, not token ids, and it does not score: the payload of a
prompt is what the reward function gets.
"""

from collections.abc import Iterable
from typing import Protocol, TypeGuard

import msgspec
import xxhash


class Prompt(msgspec.Struct, frozen=True, array_like=True):
    """One task item.

    prompt_id: stable across runs of the same data (`streamrl.types.prompt_digest`).
    text: what the model continues. payload: a JSON object for the reward, for instance `{"answer":"122"}`.
    """

    prompt_id: str
    text: str
    payload: str = "{}"


class SubmittedPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A prompt that a client gives to a run. key: the client's own name for it, by which it is known for ever.

    text: what the model continues. payload: as of a `Prompt`.
    """

    key: str
    text: str
    payload: str = "{}"


class StreamPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A submitted prompt, as it is generated: of which stream, and under which id."""

    stream: str
    prompt: Prompt


class Task(Protocol):
    """Prompts by number. `train` and `held_out` raise IndexError outside of `range(num_train)` and
    `range(num_held_out)`. No held-out prompt is a training prompt."""

    @property
    def name(self) -> str: ...

    @property
    def num_train(self) -> int: ...

    @property
    def num_held_out(self) -> int: ...

    def train(self, index: int) -> Prompt: ...

    def held_out(self, index: int) -> Prompt: ...

    def fingerprint(self) -> str:
        """A digest that changes when any prompt changes: a resumed run refuses other data by it."""
        ...


class DemonstratedTask(Task, Protocol):
    """A task that also knows right answers, so a model can be warmed up on it."""

    def demonstration(self, prompt: Prompt) -> str:
        """The text that a perfect model would write after `prompt.text`, without the end token."""
        ...


def is_demonstrated(task: Task) -> TypeGuard[DemonstratedTask]:
    """Whether `task` can be used for a supervised warm-up."""
    return callable(getattr(task, "demonstration", None))


def digest_prompts(*parts: Iterable[Prompt]) -> str:
    """16 hex digits over the ids, texts and payloads of all prompts, in order; a usual `fingerprint`."""
    state = xxhash.xxh3_64()
    for prompts in parts:
        for prompt in prompts:
            state.update(msgspec.msgpack.encode(prompt))
        state.update(b"\xc1")  # no msgpack value begins with this byte: parts cannot run into each other
    return state.hexdigest()
