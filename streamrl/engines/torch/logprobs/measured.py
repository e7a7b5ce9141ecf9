"""What is told beside the tokens, on the device: the likeliest tokens in a place, and log-probs of a prompt.

Guaranteed: what is told of a row depends on that row's logits alone. Rows that ask for nothing cost nothing.

Shapes: N rows, K of them that ask, S scored tokens of prompts, V vocabulary.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch

from streamrl.engines.torch.admission import Segment, Targets
from streamrl.engines.torch.sampling import sampled_scores, sampling_rows
from streamrl.engines.torch.slots import SlotTable
from streamrl.types import LongArray, PromptLogprobs, TopLogprobs

BLOCK_ROWS = 256
"""Scored tokens whose logits are there at once."""

NEVER = -1e20
"""The log-prob of what a grammar forbids is below it, in whatever way it was forbidden."""

Head = Callable[[torch.Tensor], torch.Tensor]
"""Logits, float32 [n, V], of what a pass gives for n tokens."""


class AskingRows:
    """The running rows that ask for the likeliest tokens. most: of the tokens that one asks for; 0 where none does."""

    def __init__(self, table: SlotTable, device: torch.device) -> None:
        asking = table.asking()
        self._num_rows, self.most = len(asking), int(asking.max(initial=0))
        if self.most:
            self._rows = np.flatnonzero(asking)
            self._on_device = torch.from_numpy(self._rows).to(device)
            temperature, top_k, top_p, min_p = table.sampling()
            rows = self._rows
            self._sampling = sampling_rows(temperature[rows], top_k[rows], top_p[rows], min_p[rows], device)

    def look(self, logits_NV: torch.Tensor) -> "Looked | None":
        """At the logits of all rows."""
        if not self.most:
            return None
        scores = sampled_scores(logits_NV.index_select(0, self._on_device).float(), self._sampling)
        logprobs = torch.log_softmax(scores, dim=-1)
        found = logprobs.topk(min(self.most, logprobs.shape[-1]), dim=-1)
        return Looked(self._num_rows, self._rows, found.indices, found.values)


class Looked(NamedTuple):
    """The likeliest of some rows, still on the device: ids int64, logprobs float32 [K, k]."""

    num_rows: int
    rows: LongArray
    ids: torch.Tensor
    logprobs: torch.Tensor

    def fetch(self) -> TopLogprobs:
        """Of all rows; waits for the device."""
        told, size = on_host(self.ids, self.logprobs), (self.num_rows, self.ids.shape[1])
        token_ids, logprobs = np.full(size, -1, np.int32), np.full(size, -np.inf, np.float32)
        token_ids[self.rows], logprobs[self.rows] = told.token_ids, told.logprobs
        return TopLogprobs(token_ids, logprobs)


def on_host(ids: torch.Tensor, logprobs: torch.Tensor) -> TopLogprobs:
    """The same without what cannot be drawn. Waits for the device."""
    token_ids, values = ids.cpu().numpy().astype(np.int32), logprobs.cpu().numpy()
    never = ~(values > NEVER)
    token_ids[never], values[never] = -1, -np.inf
    return TopLogprobs(token_ids, values)


class ScoredSegments:
    """Log-probs of the prompts that one pass read, still on the device."""

    def __init__(self, segments: Iterable[Segment], rows_S: torch.Tensor, head: Head) -> None:
        """rows: of the tokens behind which something is told, of all segments in their order, as `head` takes them."""
        self._parts: list[tuple[tuple[int, ...], _Scored]] = []
        start = 0
        for segment in segments:
            if segment.targets is not None:
                stop = start + len(segment.targets.token_ids)
                self._parts.append((segment.slots, _score(rows_S[start:stop], segment.targets, head)))
                start = stop

    def fetch(self) -> list[tuple[tuple[int, ...], PromptLogprobs]]:
        """For the rows of each segment; waits for the device."""
        return [(slots, scored.fetch()) for slots, scored in self._parts]


class _Scored(NamedTuple):
    """logprobs: float32 [S]. ids, values: [S, k]; None where none are asked for."""

    logprobs: torch.Tensor
    ids: torch.Tensor | None
    values: torch.Tensor | None

    def fetch(self) -> PromptLogprobs:
        top_logprobs = None if self.ids is None or self.values is None else on_host(self.ids, self.values)
        return PromptLogprobs(self.logprobs.cpu().numpy(), top_logprobs)


def _score(rows_S: torch.Tensor, targets: Targets, head: Head) -> _Scored:
    """Block by block: the logits of a long prompt together are larger than the model."""
    behind = torch.from_numpy(targets.token_ids).to(rows_S.device)
    logprobs, ids, values = [], [], []
    for rows, wanted in zip(rows_S.split(BLOCK_ROWS), behind.split(BLOCK_ROWS), strict=True):
        block = torch.log_softmax(head(rows), dim=-1)
        logprobs.append(block.gather(1, wanted[:, None])[:, 0])
        if targets.top_logprobs:
            some = block.topk(min(targets.top_logprobs, block.shape[-1]), dim=-1)
            ids.append(some.indices)
            values.append(some.values)
    if not targets.top_logprobs:
        return _Scored(torch.cat(logprobs), None, None)
    return _Scored(torch.cat(logprobs), torch.cat(ids), torch.cat(values))
