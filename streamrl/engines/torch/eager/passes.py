"""A plan on the device, with what all layers share, and how it goes on to the next token.

Guaranteed: a pass that was advanced holds, number for number, what a pass made anew from the next plan would hold.
Why advance: while the same rows decode, each by one token a step, all but a few numbers stay; making them anew cost
a small model a tenth of its step. It knows neither weights nor requests.

Shapes: T packed tokens, N running slots, D head_dim, L padded keys of the longest slot.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from transformers import PretrainedConfig

from streamrl.engines.torch.arrangement import KeyRange, key_ranges
from streamrl.engines.torch.batch_invariance import KEY_MULTIPLE
from streamrl.engines.torch.eager.attention import length_mask, round_up
from streamrl.engines.torch.eager.kv import KvCache
from streamrl.engines.torch.eager.plan import Plan
from streamrl.engines.torch.families import ModelShape
from streamrl.engines.torch.rotary import rope_tables
from streamrl.types import LongArray


def to_device(array: npt.NDArray, device: torch.device) -> torch.Tensor:  # type: ignore[type-arg]
    """A host array on `device`; on CPU it shares memory."""
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Group:
    """A PrefillGroup on the device."""

    padded: int
    gather: torch.Tensor
    flat: torch.Tensor
    packed: torch.Tensor


@dataclass(slots=True)
class Keys:
    """What the running slots see of the cache.

    last: int64 [N], the last position of each slot, on the host. ranges: which slots read how many places.
    mask: additive [N * kv_heads, 1, L]. edge: int64 [N * kv_heads], where in the flat mask each lane's last visible
    key is.
    """

    last: LongArray
    ranges: tuple[KeyRange, ...]
    mask: torch.Tensor
    edge: torch.Tensor


@dataclass(slots=True)
class Pass:
    """One pass over T packed tokens: the plan's decode rows first, then those of rests. `kept` rows go on after the
    last attention. by_cache: rows that attend to the cache, the decode rows and those of rests.

    token_ids int64 [T]; the others as in Plan. Where some are scored, all rows go on after the last attention.
    """

    slots: int
    rows: int
    kept: int
    by_cache: int
    token_ids: torch.Tensor
    row_of_slot: torch.Tensor | None
    groups: tuple[Group, ...]
    scored: torch.Tensor | None

    @property
    def decodes_only(self) -> bool:
        """Whether each slot has its own row and nothing else is computed: only such a pass can be advanced."""
        return self.slots > 0 and not self.groups and self.row_of_slot is None and self.by_cache == self.rows


@dataclass(slots=True)
class LibraryPass(Pass):
    """What torch needs besides: positions int64 [T]; cos, sin [T, 1, D]; targets int64 [W * 2 kv_heads]."""

    positions: torch.Tensor
    slot_of_row: torch.Tensor | None
    cos: torch.Tensor
    sin: torch.Tensor
    keys: Keys | None
    source: torch.Tensor | None
    targets: torch.Tensor


def upload_groups(plan: Plan, device: torch.device) -> tuple[Group, ...]:
    return tuple(
        Group(group.padded, *(to_device(part, device) for part in (group.gather, group.flat, group.packed)))
        for group in plan.groups
    )


class PassMaker:
    """Makes passes over one cache for one model."""

    def __init__(
        self,
        config: PretrainedConfig,
        shape: ModelShape,
        *,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        min_rows: int,
    ) -> None:
        self._kv_heads = shape.num_kv_heads
        self._device = device
        self._dtype = dtype
        self._min_rows = min_rows
        self._places = torch.arange(round_up(max_length), dtype=torch.float32, device=device)
        cos, sin = rope_tables(config, max_length, dtype, device)
        # [max_length, 1, D]: a lookup gives what broadcasts over heads.
        self._cos, self._sin = cos[:, None], sin[:, None]

    def make(self, plan: Plan, cache: KvCache) -> LibraryPass:
        assert not len(plan.rest_slots), "torch's attention has one row for each slot"
        positions = self._upload(plan.positions)
        last = plan.slot_positions
        return LibraryPass(
            slots=len(plan.slot_positions),
            rows=plan.decode_rows,
            kept=max(plan.decode_rows, self._min_rows),
            by_cache=plan.decode_rows,
            token_ids=self._upload(plan.token_ids),
            positions=positions,
            slot_of_row=None if plan.slot_of_row is None else self._upload(plan.slot_of_row),
            row_of_slot=None if plan.row_of_slot is None else self._upload(plan.row_of_slot),
            cos=self._cos.index_select(0, positions),
            sin=self._sin.index_select(0, positions),
            keys=self._keys(last.copy(), _ranges(last)) if len(last) else None,
            groups=upload_groups(plan, self._device),
            scored=None if plan.scored is None else self._upload(plan.scored),
            source=None if plan.source is None else self._upload(plan.source),
            targets=self._upload(cache.targets(plan.slots, plan.places)),
        )

    def advance(self, current: LibraryPass, token_ids: torch.Tensor) -> None:
        """Turn a pass that `decodes_only` into the one that reads `token_ids` (int64 [N]) one position further."""
        keys = current.keys
        assert keys is not None, "a pass without running slots cannot be advanced"
        assert current.decodes_only, "a pass with prompts cannot be advanced"
        current.token_ids[: current.rows].copy_(token_ids)
        # A padding row moves on with the others; nobody reads it, and it is never ahead of a real one.
        current.positions.add_(1)
        current.cos = self._cos.index_select(0, current.positions)
        current.sin = self._sin.index_select(0, current.positions)
        current.targets.add_(1)
        keys.last += 1
        if (keys.last % KEY_MULTIPLE == 0).any():
            keys.ranges = _ranges(keys.last)
            if _longest(keys.ranges) != keys.mask.shape[-1]:
                current.keys = self._keys(keys.last, keys.ranges)
                return
        keys.edge.add_(1)
        keys.mask.view(-1).index_fill_(0, keys.edge, 0.0)

    def _keys(self, last_N: LongArray, ranges: tuple[KeyRange, ...]) -> Keys:
        length = _longest(ranges)
        last_B = np.repeat(last_N, self._kv_heads)
        mask = length_mask(self._upload(last_B.astype(np.float32)), self._places[:length], self._dtype)
        edge = np.arange(len(last_B)) * length + last_B
        return Keys(last_N, ranges, mask, self._upload(edge))

    def _upload(self, array: npt.NDArray) -> torch.Tensor:  # type: ignore[type-arg]
        return to_device(array, self._device)


def _ranges(last_N: LongArray) -> tuple[KeyRange, ...]:
    return tuple(key_ranges(round_up(last_N + 1)))


def _longest(ranges: tuple[KeyRange, ...]) -> int:
    return max(part.length for part in ranges)
