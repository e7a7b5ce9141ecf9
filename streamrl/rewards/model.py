"""A reward model: a Hugging Face sequence classifier of one label that scores rows of token ids.

Guarantees: a row's score is what transformers gives for that row alone, up to rounding, whatever shares its batch,
since only rows of one length share a forward and nothing is padded; a row that cannot be scored fails alone, with a
typed error that names it. On the CPU, in float32, by as many threads as torch has. Whose vocabulary the ids are of is
the caller's to look at.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamrl.errors import ComponentError, ConfigError, DataError, NonFiniteError, StreamRLError
from streamrl.models.load import load_classifier
from streamrl.types import IntArray

TOKENS_AT_ONCE = 4096
"""Tokens of one forward at most, if it has more rows than one: enough to keep a core busy, and few for its caches."""
ROWS_AT_ONCE = 64


class RewardModel:
    """The model of one process, loaded once.

    Example:
        scores = RewardModel("reward-model").score([np.array([1, 6, 13, 7, 15, 9, 2], np.int32)])
    """

    def __init__(self, folder: str | Path, *, max_tokens: int | None = None, rows_at_once: int = ROWS_AT_ONCE) -> None:
        """folder: a sequence classifier of one label. max_tokens: of the longest row that is scored; the context that
        the model's config.json names when None. rows_at_once: that share a forward; with 1 scores agree to the bit
        with those of each row alone. Raises ConfigError for a folder that cannot be used, or a limit beyond
        the context."""
        self._model = load_classifier(folder)
        self._rows_at_once = rows_at_once
        text = self._model.config.get_text_config()
        # transformers has no use for it but to look for the end of a row, behind which no padding stands here; without
        # one it refuses several rows.
        if getattr(text, "pad_token_id", None) is None:
            text.pad_token_id = -1
        text.use_cache = False
        context = getattr(text, "max_position_embeddings", None)
        if max_tokens is not None and context is not None and max_tokens > context:
            raise ConfigError(
                f"reward.model.max_tokens = {max_tokens}, and the model in {folder} has a context of {context}; "
                "set at most that, or leave it out"
            )
        self._max_tokens = context if max_tokens is None else max_tokens
        self._vocab_size: Any = self._model.get_input_embeddings().num_embeddings

    def score(self, rows: Sequence[IntArray]) -> list[float | StreamRLError]:
        """For each row (int32 [n], prompt and completion) its score; or, in its place, DataError where it has no
        tokens, too many, or one that the model has not, NonFiniteError for a score that is no finite number,
        ComponentError where torch could not compute it. Rows are named by their place in `rows`, from 0."""
        found: list[float | StreamRLError] = [math.nan] * len(rows)
        wanted = []
        for number, row in enumerate(rows):
            refusal = self._refusal(number, row)
            if refusal is None:
                wanted.append(number)
            else:
                found[number] = refusal
        for part in self._parts(rows, wanted):
            for number, score in zip(part, self._together(rows, part), strict=True):
                found[number] = score
        return found

    def _refusal(self, number: int, row: IntArray) -> DataError | None:
        if not len(row):
            return DataError(f"row {number} has no tokens for the reward model")
        if self._max_tokens is not None and len(row) > self._max_tokens:
            return DataError(
                f"row {number} has {len(row)} tokens, more than the {self._max_tokens} that the reward model takes; "
                "lower rollout.sampling.max_new_tokens, or take a model of a longer context"
            )
        low, high = int(row.min()), int(row.max())
        if low < 0 or high >= self._vocab_size:
            wrong = low if low < 0 else high
            return DataError(f"row {number} has token {wrong}, and the reward model has {self._vocab_size} tokens")
        return None

    def _parts(self, rows: Sequence[IntArray], wanted: list[int]) -> Iterator[list[int]]:
        """The numbers of the rows of each forward: of equal length."""
        by_length: dict[int, list[int]] = {}
        for number in wanted:
            by_length.setdefault(len(rows[number]), []).append(number)
        for length, numbers in sorted(by_length.items()):
            most = max(1, min(self._rows_at_once, TOKENS_AT_ONCE // length))
            for start in range(0, len(numbers), most):
                yield numbers[start : start + most]

    def _together(self, rows: Sequence[IntArray], part: list[int]) -> list[float | StreamRLError]:
        """The scores of rows of equal length."""
        ids = torch.from_numpy(np.stack([rows[number] for number in part]).astype(np.int64))
        try:
            with torch.inference_mode():
                scores = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, 0].tolist()
        except (RuntimeError, IndexError, MemoryError) as error:
            what = f"{type(error).__name__}: {error}"
            return [ComponentError(f"row {number}: the reward model failed with {what}") for number in part]
        return [
            score if math.isfinite(score) else NonFiniteError(f"row {number}: the reward model's score is {score}")
            for number, score in zip(part, scores, strict=True)
        ]
