"""What modules that mix tokens outside of attention keep of the tokens before.

It is the last inputs of a convolution, and the state of a recurrence. `RowStates` is what such a module is handed as
its `cache`, for the rows of one call. `SlotStates` keeps them by slot.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

Key = tuple[str, int]
"""("conv" or "recurrent", number): a module may have several of each."""


class StateSize(NamedTuple):
    """Of one state of a slot."""

    size: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return torch.Size(self.size).numel() * self.dtype.itemsize


class RowStates:
    """The states of the rows of one call: [rows, ...] by key; none yet for rows that begin.

    The methods are those of a cache of transformers that its modules call. A module may write into what it is given."""

    def __init__(self, states: Mapping[Key, torch.Tensor] | None = None) -> None:
        self.states: dict[Key, torch.Tensor] = dict(states or {})

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor | None:
        return self.states.get(("recurrent", state_idx))

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return bool(self.states)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False

    def update_conv_state(
        self,
        inputs_RCT: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
        **_kwargs: Any,
    ) -> torch.Tensor:
        """The inputs behind those that came before, which are zeros where nothing did. Keeps the last ones."""
        before = self.states.get(("conv", state_idx))
        kept = conv_kernel_size or (inputs_RCT if before is None else before).shape[-1]
        if before is None:
            whole = F.pad(inputs_RCT, (max(0, kept - inputs_RCT.shape[-1]), 0))
        else:
            whole = torch.cat([before, inputs_RCT], dim=-1)
        self.states["conv", state_idx] = whole[..., -kept:]
        return whole

    def update_recurrent_state(
        self, state: torch.Tensor, layer_idx: int, state_idx: int = 0, **_kwargs: Any
    ) -> torch.Tensor:
        self.states["recurrent", state_idx] = state
        return state


class SlotStates:
    """The states of every slot. sizes: of each module, in the model's order."""

    def __init__(self, sizes: Sequence[Mapping[Key, StateSize]], slots: int, device: torch.device) -> None:
        self._states = [
            {key: torch.zeros(slots, *one.size, dtype=one.dtype, device=device) for key, one in module.items()}
            for module in sizes
        ]

    def read(self, module: int, slots: torch.Tensor, count: int) -> RowStates:
        """The states of these slots, and of the first one again until there are `count`."""
        rows = torch.cat([slots, slots[:1].expand(count - len(slots))])
        return RowStates({key: state.index_select(0, rows) for key, state in self._states[module].items()})

    def write(self, module: int, slots: torch.Tensor, rows: torch.Tensor, states: RowStates) -> None:
        """Slot `slots[i]` gets the state of row `rows[i]`."""
        for key, state in self._states[module].items():
            state.index_copy_(0, slots, states.states[key].index_select(0, rows).to(state.dtype))

    def move(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        for state in self._all():
            state.index_copy_(0, targets, state.index_select(0, sources))

    def clear_of(self, module: int, slots: torch.Tensor) -> None:
        """Of one module: these slots begin."""
        for state in self._states[module].values():
            state.index_fill_(0, slots, 0.0)

    def clear(self, slots: torch.Tensor) -> None:
        for state in self._all():
            state.index_fill_(0, slots, 0.0)

    def _all(self) -> list[torch.Tensor]:
        return [state for module in self._states for state in module.values()]
