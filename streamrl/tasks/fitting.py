"""A task without its prompts that are too long (`data.too_long = "skip"`)."""

from collections.abc import Callable

import numpy as np

from streamrl.errors import ConfigError
from streamrl.tasks.base import DemonstratedTask, Prompt, Task, is_demonstrated
from streamrl.tasks.prompts import Encoder, prompt_ids, prompt_of
from streamrl.types import LongArray


def fitting_task(task: Task, tokenizer: Encoder, max_tokens: int) -> Task:
    """The prompts of a task of at most `max_tokens` tokens. Raises ConfigError where none is left to train on."""
    train = _fitting(task, task.train, task.num_train, tokenizer, max_tokens)
    held_out = _fitting(task, task.held_out, task.num_held_out, tokenizer, max_tokens)
    if not len(train):
        raise ConfigError(
            f"task {task.name!r}: none of its {task.num_train} training prompts has {max_tokens} tokens or less"
        )
    if is_demonstrated(task):
        return _FittingDemonstratedTask(task, train, held_out)
    return _FittingTask(task, train, held_out)


def _fitting(task: Task, get: Callable[[int], Prompt], count: int, tokenizer: Encoder, max_tokens: int) -> LongArray:
    """int64 [n], the numbers of the prompts that fit."""
    fits = [len(prompt_ids(prompt_of(task, get, index), tokenizer)) <= max_tokens for index in range(count)]
    return np.flatnonzero(np.array(fits, bool))


class _FittingTask:
    """See the module. rows_too_long: how many prompts are left out."""

    def __init__(self, task: Task, train: LongArray, held_out: LongArray) -> None:
        self.task = task
        self.name = task.name
        self._train, self._held_out = train, held_out
        self.rows_too_long = task.num_train + task.num_held_out - len(train) - len(held_out)

    @property
    def num_train(self) -> int:
        return len(self._train)

    @property
    def num_held_out(self) -> int:
        return len(self._held_out)

    def train(self, index: int) -> Prompt:
        return self.task.train(_at(self._train, index))

    def held_out(self, index: int) -> Prompt:
        return self.task.held_out(_at(self._held_out, index))

    def fingerprint(self) -> str:
        return f"{self.task.fingerprint()}-{self.rows_too_long}"


class _FittingDemonstratedTask(_FittingTask):
    task: DemonstratedTask

    def demonstration(self, prompt: Prompt) -> str | list[str]:
        return self.task.demonstration(prompt)


def _at(numbers: LongArray, index: int) -> int:
    if not 0 <= index < len(numbers):
        raise IndexError(f"there is no prompt {index}: there are {len(numbers)}")
    return int(numbers[index])
