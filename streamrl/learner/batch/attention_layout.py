"""The layout of a pack: which stretches of tokens attend to what.

A pack holds segments one after the other. A segment's queries are its own tokens; its keys are those
tokens, after all tokens of the segment that it follows, if any, and of those that this one follows. So what rows have
in common at their beginning, as the prompt of a group, is computed once in a pack and not once for each of them
(`prefix_tree`). Attention is causal and bottom-right aligned: the last query sees every key.

Knows nothing of heads, of the model, or of what the tokens mean.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from streamrl.learner.batch.prefix_tree import segments_on_path
from streamrl.learner.batch.rows import ragged_arange
from streamrl.types import LongArray


class Run(NamedTuple):
    """`count` neighbouring segments of equal shape: one attention call on CPU.

    q_start is the place of the first query in the pack, kv_start the place of the first key in `kv_index`.
    """

    count: int
    q_len: int
    k_len: int
    q_start: int
    kv_start: int


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Segments in pack order. S segments, T tokens, K keys of all segments together.

    cu_q, cu_k: int32 [S + 1], ends of queries and of keys. kv_index: int64 [K], the pack place of each key.
    """

    runs: tuple[Run, ...]
    cu_q: torch.Tensor
    cu_k: torch.Tensor
    kv_index: torch.Tensor

    @property
    def max_q(self) -> int:
        return max(run.q_len for run in self.runs)

    @property
    def max_k(self) -> int:
        return max(run.k_len for run in self.runs)

    @property
    def shares_keys(self) -> bool:
        """Whether a segment has other keys than its own tokens."""
        return any(run.q_len != run.k_len for run in self.runs)

    def to(self, device: torch.device) -> "SegmentLayout":
        """The same on `device`; see `to_device`."""
        return SegmentLayout(self.runs, *(to_device(part, device) for part in (self.cu_q, self.cu_k, self.kv_index)))

    def with_lone_tokens(self, count: int) -> "SegmentLayout":
        """So many segments more, behind these, of a token each that sees itself."""
        tokens, keys = int(self.cu_q[-1]), int(self.cu_k[-1])
        further = torch.arange(1, count + 1, dtype=torch.int32, device=self.cu_q.device)
        return SegmentLayout(
            runs=(*self.runs, Run(count, 1, 1, tokens, keys)),
            cu_q=torch.cat([self.cu_q, self.cu_q[-1] + further]),
            cu_k=torch.cat([self.cu_k, self.cu_k[-1] + further]),
            kv_index=torch.cat([self.kv_index, tokens - 1 + further.long()]),
        )


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """`tensor` there. To a GPU by pinned memory: a copy from other memory waits until the GPU has done what it was
    given before."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def lay_out(q_len_S: LongArray, start_S: LongArray | None = None, parent_S: LongArray | None = None) -> SegmentLayout:
    """The layout of segments that lie one after the other.

    q_len_S: int64 [S], at least 1 each. start_S: int64 [S], keys before the segment's own; parent_S: int64 [S], the
    segment that ends with these keys, -1 for none. Without them each segment sees its own tokens alone.
    """
    if start_S is None or parent_S is None:
        start_S, parent_S = np.zeros_like(q_len_S), np.full_like(q_len_S, -1)
    q_end_S = np.cumsum(q_len_S)
    k_len_S = start_S + q_len_S
    k_end_S = np.cumsum(k_len_S)
    position_K = ragged_arange(np.zeros_like(k_len_S), k_len_S)
    owner_K = segments_on_path(parent_S, start_S, np.repeat(np.arange(len(q_len_S)), k_len_S), position_K)
    return SegmentLayout(
        runs=_runs(q_len_S, k_len_S),
        cu_q=_ends(q_end_S),
        cu_k=_ends(k_end_S),
        kv_index=torch.from_numpy((q_end_S - q_len_S - start_S)[owner_K] + position_K),
    )


def _ends(end_S: LongArray) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(1, np.int64), end_S]).astype(np.int32))


def _runs(q_len_S: LongArray, k_len_S: LongArray) -> tuple[Run, ...]:
    changes = (np.diff(q_len_S) != 0) | (np.diff(k_len_S) != 0)
    first = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(changes) + 1])
    count = np.diff(np.append(first, len(q_len_S)))
    q_start = (np.cumsum(q_len_S) - q_len_S)[first]
    kv_start = (np.cumsum(k_len_S) - k_len_S)[first]
    columns = (count, q_len_S[first], k_len_S[first], q_start, kv_start)
    return tuple(Run(*map(int, values)) for values in zip(*columns, strict=True))
