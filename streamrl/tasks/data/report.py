"""What prepared prompts are like: their lengths, which texts occur twice, and what is both trained on and evaluated.

Memory: 12 bytes for each training prompt, while it looks.
"""

import json
from typing import Any, NamedTuple

import numpy as np
import xxhash

from streamrl.tasks.data.task import DataTask
from streamrl.tasks.prompts import Encoder, prompt_ids
from streamrl.types import LongArray

BINS = 10
LEAKS_TOLD = 3


class DataReport(NamedTuple):
    """lengths: (fewest, most tokens, prompts) of each bin. duplicates: training prompts whose text an earlier one has.
    leaked: evaluation prompts whose text is trained on, too; leaks: the first of them, with a training prompt.
    without_answer: training prompts whose payload has no answer, or None."""

    lengths: list[tuple[int, int, int]]
    duplicates: int
    leaked: int
    leaks: list[tuple[int, int]]
    without_answer: int

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


def report_of(task: DataTask, tokenizer: Encoder) -> DataReport:
    """Look at every prompt once."""
    digests = np.empty(task.num_train, np.uint64)
    lengths = np.empty(task.num_train, np.int32)
    without_answer = 0
    for index in range(task.num_train):
        prompt = task.train(index)
        digests[index] = xxhash.xxh3_64_intdigest(prompt.text.encode())
        lengths[index] = len(prompt_ids(prompt, tokenizer))
        without_answer += json.loads(prompt.payload).get("answer") in (None, "")
    order = np.argsort(digests, kind="stable")
    known = digests[order]
    leaks = []
    for index in range(task.num_held_out):
        digest = np.uint64(xxhash.xxh3_64_intdigest(task.held_out(index).text.encode()))
        place = int(np.searchsorted(known, digest))
        if place < len(known) and known[place] == digest:
            leaks.append((index, int(order[place])))
    duplicates = int((known[1:] == known[:-1]).sum())
    return DataReport(_bins(lengths), duplicates, len(leaks), leaks[:LEAKS_TOLD], without_answer)


def _bins(lengths: "np.typing.NDArray[np.int32] | LongArray") -> list[tuple[int, int, int]]:
    if not len(lengths):
        return []
    low, high = int(lengths.min()), int(lengths.max())
    width = max(1, -(-(high - low + 1) // BINS))
    bins = np.bincount((lengths - low) // width)
    return [(low + place * width, low + (place + 1) * width - 1, int(count)) for place, count in enumerate(bins)]
