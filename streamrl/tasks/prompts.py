"""Prompts as token ids, made once and kept.

Knows a task and something that encodes text; it imports no model library. Ids are read-only arrays, because
the requests of one group share them.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from streamrl.config import Config
from streamrl.config.estimates import sizes
from streamrl.config.estimates.model_of import model_facts
from streamrl.errors import ConfigError
from streamrl.tasks.base import Prompt, Task
from streamrl.types import IntArray

CHECK_BATCH = 1024  # prompts encoded at a time when all are measured
KEPT = 2**16  # encoded prompts in a process: all of them would grow with the data


class Encoder(Protocol):
    """What `streamrl.models.tokenizer.TextTokenizer` offers, as far as prompts need it."""

    def encode(self, text: str) -> IntArray: ...


class EncodedPrompts:
    """The training prompts of a task with their ids, by `data_index`, encoded when first asked for.

    Of those, the last KEPT are kept."""

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
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        return found

    def of(self, prompt: Prompt) -> tuple[Prompt, IntArray]:
        """The same for a prompt that is not of the task; it is not kept."""
        ids = prompt_ids(prompt, self._tokenizer)
        if not len(ids):
            raise _no_tokens(prompt, self._task)
        ids.flags.writeable = False
        return prompt, ids

    def _encode(self, data_index: int) -> tuple[Prompt, IntArray]:
        return self.of(self._task.train(data_index))


def prompt_ids(prompt: Prompt, tokenizer: Encoder) -> IntArray:
    """int32 [n], the tokens that the model gets for a prompt: its own, or those of its text."""
    return np.frombuffer(prompt.ids, "<i4").astype(np.int32) if prompt.ids else tokenizer.encode(prompt.text)


def check_prompts(task: Task, tokenizer: Encoder, max_tokens: int) -> int:
    """Tokens of the longest prompt of `task`, held-out ones included.

    Raises ConfigError naming the first prompt that has none, or more than `max_tokens` (context length less
    the longest completion): such a prompt would fail again and again in the middle of a run. Also for training prompts
    that share an id, by which their groups are told apart.
    """
    longest = 0
    everything = [(task.train, task.num_train), (task.held_out, task.num_held_out)]
    for get, count in everything:
        for start in range(0, count, CHECK_BATCH):
            prompts = [prompt_of(task, get, index) for index in range(start, min(start + CHECK_BATCH, count))]
            longest = max(longest, _check_batch(prompts, tokenizer, max_tokens, task))
    _require_own_ids(task)
    return longest


def _require_own_ids(task: Task) -> None:
    """Raise ConfigError where two training prompts have one id."""
    first: dict[str, int] = {}
    again: list[tuple[str, int, int]] = []
    for index in range(task.num_train):
        name = prompt_of(task, task.train, index).prompt_id
        before = first.setdefault(name, index)
        if before != index:
            again.append((name, before, index))
    if again:
        name, one, other = again[0]
        raise ConfigError(
            f"task {task.name!r}: {len(again)} training prompts have an id that another one has: train({one}) and "
            f"train({other}) are both {name!r}. Give each its own (streamrl.ids.prompt_digest makes one); "
            "and equal texts are fine"
        )


def bytes_beside_tokens(config: Config, task: Task, longest_prompt: int) -> int:
    """What a row takes beside its tokens for its text, and for routes of experts where they are recorded, at most.
    longest_prompt: tokens."""
    text = sizes.longest_row_text(config, longest_text(task))
    facts, _ = model_facts(config.model) if config.learner.router_replay else (None, [])
    return text if facts is None else text + sizes.route_bytes(config, facts, longest_prompt)


def longest_text(task: Task) -> int:
    """Bytes that a training prompt adds to each row of its rollouts, at most: its id, which names the group and the
    rollout too, and its payload."""
    known = getattr(task, "longest_text", None)
    if isinstance(known, int):
        return known
    prompts = (task.train(index) for index in range(task.num_train))
    return max((3 * len(prompt.prompt_id.encode()) + len(prompt.payload.encode()) for prompt in prompts), default=0)


def prompt_of(task: Task, get: Callable[[int], Prompt], index: int) -> Prompt:
    """One prompt. Raises ConfigError when the task, which may be anybody's, gives none."""
    where = f"task {task.name!r}: {getattr(get, '__name__', 'prompt')}({index})"
    try:
        prompt = get(index)
    except Exception as error:  # a user's task may raise anything
        raise ConfigError(f"{where} raised {type(error).__name__}: {error}") from error
    texts = (prompt.prompt_id, prompt.text, prompt.payload) if isinstance(prompt, Prompt) else (None,)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where} gave {prompt!r:.80}, not a streamrl.tasks.base.Prompt of three texts")
    return prompt


def _check_batch(prompts: list[Prompt], tokenizer: Encoder, max_tokens: int, task: Task) -> int:
    longest = 0
    for prompt in prompts:
        ids = prompt_ids(prompt, tokenizer)
        if not len(ids):
            raise _no_tokens(prompt, task)
        if len(ids) > max_tokens:
            raise ConfigError(
                f"task {task.name!r}: prompt {prompt.prompt_id} has {len(ids)} tokens, and {max_tokens} fit "
                "(the model's context less rollout.sampling.max_new_tokens); shorten the prompt, lower max_new_tokens, "
                'or take a model with a longer context. data.too_long = "skip" leaves such prompts out. It begins '
                f"{prompt.text[:60]!r}"
            )
        longest = max(longest, len(ids))
    return longest


def _no_tokens(prompt: Prompt, task: Task) -> ConfigError:
    return ConfigError(
        f"task {task.name!r}: prompt {prompt.prompt_id} ({prompt.text!r}) encodes to no tokens; "
        "give it text, or a tokenizer that begins with a bos token"
    )
