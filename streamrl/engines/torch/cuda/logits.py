"""What requests change of the logits, on the device: in buffers that a graph reads, so that each pass finds its own.

Guaranteed: what `logits_processors.constrained.RowChanges` says, in float32, rounded to the logits' own numbers; rows
without a change keep their bits. What is forbidden keeps a finite logit, as all logits of a sound row have.

Shapes: B rows, V vocabulary, E tokens whose logits a row changes.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from streamrl.engines.torch.logits_processors.adjustments import MOST_NAMED, RowTerms
from streamrl.engines.torch.logits_processors.constrained import RowChanges, RowMasks

FORBIDDEN = -1e30
"""The logit of a token that a mask does not allow: its share is 0."""
_BLOCK = 1024


@triton.jit
def _mask(logits_ptr, bound_ptr, allowed_ptr, size, words, BLOCK: tl.constexpr, FORBIDDEN: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    if tl.load(bound_ptr + row) != 0:
        at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = at < size
        word = tl.load(allowed_ptr + row.to(tl.int64) * words + at // 32, mask=inside, other=0)
        place = logits_ptr + row.to(tl.int64) * size + at
        x = tl.load(place, mask=inside, other=0.0)
        x = tl.where(((word >> (at % 32)) & 1) != 0, x, FORBIDDEN)
        tl.store(place, x, mask=inside)


@triton.jit
def _adjust(logits_ptr, count_ptr, ids_ptr, terms_ptr, size, width, rows, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    count = tl.load(count_ptr + row)
    begin = tl.program_id(1) * BLOCK
    if begin < count:
        at = begin + tl.arange(0, BLOCK)
        inside = at < count
        entry = row.to(tl.int64) * width + at
        table = rows.to(tl.int64) * width
        place = logits_ptr + row.to(tl.int64) * size + tl.load(ids_ptr + entry, mask=inside, other=0)
        bias = tl.load(terms_ptr + entry, mask=inside, other=0.0)
        repetition = tl.load(terms_ptr + table + entry, mask=inside, other=1.0)
        penalty = tl.load(terms_ptr + 2 * table + entry, mask=inside, other=0.0)
        x = tl.load(place, mask=inside, other=0.0).to(tl.float32) + bias
        x = tl.where(x > 0, x / repetition, x * repetition) - penalty
        tl.store(place, x, mask=inside)


class LogitChanges:
    """Buffers for `rows` rows of at most `max_length` tokens, over `vocab_size` tokens.

    Example:
        changes.bind(row_changes)           # before a pass
        changes.run(logits_BV)              # in its graph, before what draws
    """

    def __init__(self, rows: int, max_length: int, vocab_size: int, device: torch.device) -> None:
        self._width = min(max_length + MOST_NAMED, vocab_size)
        self._bound = torch.zeros(rows, dtype=torch.int32, device=device)
        self._allowed = torch.zeros(rows, -(-vocab_size // 32), dtype=torch.int32, device=device)
        self._count = torch.zeros(rows, dtype=torch.int32, device=device)
        self._ids = torch.zeros(rows, self._width, dtype=torch.int32, device=device)
        self._terms = torch.zeros(3, rows, self._width, dtype=torch.float32, device=device)

    def run(self, logits_BV: torch.Tensor) -> None:
        """Change the logits of the first rows, in place."""
        count, size = logits_BV.shape
        block = min(_BLOCK, triton.next_power_of_2(self._width))
        grid = (count, triton.cdiv(self._width, block))
        rows = self._bound.shape[0]
        _adjust[grid](logits_BV, self._count, self._ids, self._terms, size, self._width, rows, BLOCK=block)
        block = min(_BLOCK, triton.next_power_of_2(size))
        grid = (count, triton.cdiv(size, block))
        words = self._allowed.shape[1]
        _mask[grid](logits_BV, self._bound, self._allowed, size, words, BLOCK=block, FORBIDDEN=FORBIDDEN)

    def bind(self, changes: RowChanges) -> None:
        """Have the passes change what these say, until the next ones."""
        self._bound.zero_()
        self._count.zero_()
        if changes.terms is not None:
            self._adjust(changes.terms)
        if changes.masks is not None:
            self._mask(changes.masks)

    def _mask(self, masks: RowMasks) -> None:
        rows = torch.from_numpy(masks.rows).to(self._bound.device)
        self._bound.index_fill_(0, rows, 1)
        self._allowed.index_copy_(0, rows, torch.from_numpy(masks.allowed.view(np.int32)).to(rows.device))

    def _adjust(self, terms: RowTerms) -> None:
        counts = np.array([len(one.ids) for one in terms.terms], np.int32)
        widest = int(counts.max())
        ids, values = np.zeros((len(counts), widest), np.int32), np.zeros((3, len(counts), widest), np.float32)
        for place, one in enumerate(terms.terms):
            ids[place, : counts[place]] = one.ids
            values[:, place, : counts[place]] = one.bias, one.repetition, one.penalty
        rows = torch.from_numpy(terms.rows).to(self._bound.device)
        self._count.index_copy_(0, rows, torch.from_numpy(counts).to(rows.device))
        self._ids[:, :widest].index_copy_(0, rows, torch.from_numpy(ids).to(rows.device))
        self._terms[:, :, :widest].index_copy_(1, rows, torch.from_numpy(values).to(rows.device))
