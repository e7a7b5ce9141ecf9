"""Prompts as token ids, made once and kept.

Knows a task and something that encodes text; it imports no model library. Ids are read-only arrays, because
the requests of one group share them.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from streamrl.errors import ConfigError
from streamrl.tasks.base import Prompt, Task
from streamrl.types import IntArray

CHECK_BATCH = 1024  # prompts encoded at a time when all are measured


class Encoder(Protocol):
    """What `streamrl.models.tokenizer.TextTokenizer` offers, as far as prompts need it."""

    def encode(self, text: str) -> IntArray: ...

    def encode_batch(self, texts: list[str]) -> list[IntArray]: ...


class EncodedPrompts:
    """The training prompts of a task with their ids, by `data_index`, encoded when first asked for."""

    def __init__(self, task: Task, tokenizer: Encoder) -> None:
        self._task = task
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[Prompt, IntArray]] = {}

    def at(self, data_index: int) -> tuple[Prompt, IntArray]:
        """The prompt and its ids (int32 [n], read-only). Raises ConfigError for a prompt without tokens."""
        found = self._known.get(data_index)
        if found is None:
            found = self._encode(data_index)
            self._known[data_index] = found
        return found

    def of(self, prompt: Prompt) -> tuple[Prompt, IntArray]:
        """The same for a prompt that is not of the task; it is not kept."""
        ids = self._tokenizer.encode(prompt.text)
        if not len(ids):
            raise _no_tokens(prompt, self._task)
        ids.flags.writeable = False
        return prompt, ids

    def _encode(self, data_index: int) -> tuple[Prompt, IntArray]:
        return self.of(self._task.train(data_index))


def check_prompt_lengths(task: Task, tokenizer: Encoder, max_tokens: int) -> int:
    """Tokens of the longest prompt of `task`, held-out ones included.

    Raises ConfigError naming the first prompt that has none, or more than `max_tokens` (context length less
    the longest completion): such a prompt would fail again and again in the middle of a run.
    """
    longest = 0
    everything = [(task.train, task.num_train), (task.held_out, task.num_held_out)]
    for get, count in everything:
        for start in range(0, count, CHECK_BATCH):
            prompts = [_prompt(task, get, index) for index in range(start, min(start + CHECK_BATCH, count))]
            longest = max(longest, _check_batch(prompts, tokenizer, max_tokens, task))
    return longest


def longest_text(task: Task) -> int:
    """Bytes that a training prompt adds to each row of its rollouts, at most: its id, which names the group and the
    rollout too, and its payload."""
    prompts = (task.train(index) for index in range(task.num_train))
    return max((3 * len(prompt.prompt_id.encode()) + len(prompt.payload.encode()) for prompt in prompts), default=0)


def _prompt(task: Task, get: Callable[[int], Prompt], index: int) -> Prompt:
    """One prompt. Raises ConfigError when the task, which may be anybody's, gives none."""
    where = f"task {task.name!r}: {getattr(get, '__name__', 'prompt')}({index})"
    try:
        prompt = get(index)
    except Exception as error:  # a user's task may raise anything
        raise ConfigError(f"{where} raised {type(error).__name__}: {error}") from error
    if not isinstance(prompt, Prompt) or not all(isinstance(field, str) for field in msgspec.structs.astuple(prompt)):
        raise ConfigError(f"{where} gave {prompt!r:.80}, not a streamrl.tasks.base.Prompt of three texts")
    return prompt


def _check_batch(prompts: list[Prompt], tokenizer: Encoder, max_tokens: int, task: Task) -> int:
    longest = 0
    for prompt, ids in zip(prompts, tokenizer.encode_batch([p.text for p in prompts]), strict=True):
        if not len(ids):
            raise _no_tokens(prompt, task)
        if len(ids) > max_tokens:
            raise ConfigError(
                f"task {task.name!r}: prompt {prompt.prompt_id} has {len(ids)} tokens, and {max_tokens} fit "
                "(the model's context less rollout.sampling.max_new_tokens); shorten the prompt, lower "
                f"max_new_tokens, or take a model with a longer context. It begins {prompt.text[:60]!r}"
            )
        longest = max(longest, len(ids))
    return longest


def _no_tokens(prompt: Prompt, task: Task) -> ConfigError:
    return ConfigError(
        f"task {task.name!r}: prompt {prompt.prompt_id} ({prompt.text!r}) encodes to no tokens; "
        "give it text, or a tokenizer that begins with a bos token"
    )
