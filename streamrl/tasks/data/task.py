"""The prompts of `[data]` as a task."""

import json
from pathlib import Path

from streamrl.errors import DataError
from streamrl.tasks.base import Prompt
from streamrl.tasks.data.columns import DEMONSTRATION
from streamrl.tasks.data.store import HELD_OUT, TRAIN, Meta, PromptReader, read_meta


class DataTask:
    """Prepared prompts by number. Raises DataError for a folder that is not whole.

    weights: how often a prompt comes from each address of `data.train`; by their sizes when empty."""

    name = "data"

    def __init__(self, folder: Path, weights: tuple[float, ...] = ()) -> None:
        meta = read_meta(folder)
        if meta is None:
            raise DataError(f"{folder} holds no prepared prompts, or not all of them; remove it")
        self.meta: Meta = meta
        self.longest_tokens, self.longest_text = meta.longest_tokens, meta.longest_text
        self.weights = weights
        self.part_sizes = tuple(meta.train)
        self._train, self._held_out = PromptReader(folder, TRAIN), PromptReader(folder, HELD_OUT)

    @property
    def num_train(self) -> int:
        return self._train.count

    @property
    def num_held_out(self) -> int:
        return self._held_out.count

    @property
    def held_out_sets(self) -> dict[str, int]:
        """How many evaluation prompts each set has, in the order of their numbers."""
        return self.meta.held_out

    def train(self, index: int) -> Prompt:
        return self._train.at(index)

    def held_out(self, index: int) -> Prompt:
        return self._held_out.at(index)

    def fingerprint(self) -> str:
        return self.meta.fingerprint


class DemonstratedDataTask(DataTask):
    """The same with a column of demonstrations, so that a model can be warmed up on it."""

    def demonstration(self, prompt: Prompt) -> str:
        return str(json.loads(prompt.payload)[DEMONSTRATION])


def rows_left_out(task: object) -> dict[str, int]:
    """How many rows of a task's files are not in it, by why; zeros for a task that is a class."""
    if isinstance(task, DataTask):
        return {"rows_too_long": task.meta.too_long, "rows_unusable": task.meta.num_bad}
    return {"rows_too_long": getattr(task, "rows_too_long", 0), "rows_unusable": 0}
