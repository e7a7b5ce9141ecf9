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

    prompt_id: stable across runs of the same data (`streamrl.ids.prompt_digest`).
    text: what the model continues. payload: a JSON object for the reward, for instance `{"answer":"122"}`. ids: the
    tokens of the text, little-endian int32, where they are not what the tokenizer makes of it alone: a chat template
    has its own special tokens.

    Example:
        >>> from streamrl.ids import prompt_digest
        >>> Prompt(prompt_digest("37+85=", 0), "37+85=", '{"answer":"122"}').text
        '37+85='
    """

    prompt_id: str
    text: str
    payload: str = "{}"
    ids: bytes = b""


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
    `range(num_held_out)`. No held-out prompt is a training prompt.

    Example:
        >>> from streamrl.ids import prompt_digest
        >>> class Doubles:
        ...     name, num_train, num_held_out = "doubles", 8, 2
        ...     def train(self, index: int) -> Prompt:
        ...         if not 0 <= index < self.num_train:
        ...             raise IndexError(index)
        ...         return self._prompt(index)
        ...     def held_out(self, index: int) -> Prompt:
        ...         if not 0 <= index < self.num_held_out:
        ...             raise IndexError(index)
        ...         return self._prompt(self.num_train + index)
        ...     def fingerprint(self) -> str:
        ...         return digest_prompts(map(self.train, range(8)), map(self.held_out, range(2)))
        ...     def _prompt(self, number: int) -> Prompt:
        ...         text = f"{number}+{number}="
        ...         return Prompt(prompt_digest(text, number), text, f'{{"answer":"{2 * number}"}}')
        >>> Doubles().held_out(1).text
        '9+9='
    """

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
    """A task that also knows right answers, so a model can be warmed up on it.

    Example:
        >>> from streamrl.tasks.resolve import resolve_task
        >>> task = resolve_task("arithmetic", 0.1)
        >>> task.demonstration(Prompt("id", "37+85=", '{"answer":"122"}'))
        '122'
    """

    def demonstration(self, prompt: Prompt) -> str | list[str]:
        """The text that a perfect model would write after `prompt.text`, without the end token. In an environment what
        it would say turn by turn, tool calls in the form of its chat template; a text is one turn."""
        ...


def turns_of(demonstration: str | list[str]) -> list[str]:
    """What is said turn by turn.

    Example:
        >>> turns_of("122"), turns_of(["<tool_call>...", "122"])
        (['122'], ['<tool_call>...', '122'])
    """
    return [demonstration] if isinstance(demonstration, str) else demonstration


def is_demonstrated(task: Task) -> TypeGuard[DemonstratedTask]:
    """Whether `task` can be used for a supervised warm-up."""
    return callable(getattr(task, "demonstration", None))


def digest_prompts(*parts: Iterable[Prompt]) -> str:
    """16 hex digits over the ids, texts and payloads of all prompts, in order; a usual `fingerprint`.

    Example:
        >>> train, held_out = [Prompt("a", "1+1=")], [Prompt("b", "2+2=")]
        >>> digest_prompts(train, held_out) == digest_prompts(held_out, train)
        False
    """
    state = xxhash.xxh3_64()
    for prompts in parts:
        for prompt in prompts:
            state.update(msgspec.msgpack.encode((prompt.prompt_id, prompt.text, prompt.payload)))
        state.update(b"\xc1")  # no msgpack value begins with this byte: parts cannot run into each other
    return state.hexdigest()
