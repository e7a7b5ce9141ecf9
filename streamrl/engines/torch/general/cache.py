"""Keys, values and states of each layer by slot, in the sizes that the model's own modules give them.

Guaranteed: memory never grows after construction, and it is at most `kv_bytes`. What lies beyond a slot's length is
stale but finite.
"""

from typing import NamedTuple

import torch

from streamrl.engines.torch.eager.attention import round_up
from streamrl.engines.torch.general.states import Key, SlotStates, StateSize
from streamrl.errors import ConfigError


class LayerSize(NamedTuple):
    """Of one layer: heads of keys and values, and the numbers of a key and of a value. Zeros: it does not attend."""

    kv_heads: int
    key_dim: int
    value_dim: int


class ModelSizes(NamedTuple):
    """What a model keeps of each token, by layer, and of each request, by module that mixes outside of attention."""

    layers: list[LayerSize]
    states: list[dict[Key, StateSize]]

    @property
    def token_numbers(self) -> int:
        return sum(one.kv_heads * (one.key_dim + one.value_dim) for one in self.layers)

    @property
    def state_bytes(self) -> int:
        return sum(one.num_bytes for module in self.states for one in module.values())


class LayeredCache:
    """`slots` may be fewer than were asked for: what fits in `kv_bytes`. Raises ConfigError when not one does."""

    def __init__(
        self,
        sizes: ModelSizes,
        *,
        slots: int,
        max_length: int,
        kv_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.capacity = round_up(max_length)
        self.token_bytes = sizes.token_numbers * dtype.itemsize
        slot_bytes = self.token_bytes * self.capacity + sizes.state_bytes
        self.slots = min(slots, kv_bytes // slot_bytes)
        if self.slots < 1:
            raise ConfigError(
                f"kv_bytes is {kv_bytes}, but one request of {max_length} tokens takes {slot_bytes} bytes of KV "
                f"cache: set rollout.kv_bytes to at least {slot_bytes}, or shorten the requests"
            )
        self.total_bytes = slot_bytes * self.slots
        # [slots, kv_heads, capacity, dim]. Zeros, not empty memory: a NaN left there would survive a mask.
        self.keys, self.values = (
            [
                torch.zeros(self.slots, one.kv_heads, self.capacity, one[dim], dtype=dtype, device=device)
                for one in sizes.layers
            ]
            for dim in (1, 2)
        )
        self.states = SlotStates(sizes.states, self.slots, device)

    def write(
        self, layer: int, key_WKD: torch.Tensor, value_WKE: torch.Tensor, slots_W: torch.Tensor, places_W: torch.Tensor
    ) -> None:
        """Store W tokens' keys and values in their slots and places."""
        self.keys[layer][slots_W, :, places_W] = key_WKD
        self.values[layer][slots_W, :, places_W] = value_WKE

    def move(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copy the first `length` positions of slots `sources` over slots `targets` (int64), all at once."""
        for tensor in (*self.keys, *self.values):
            part = tensor[:, :, :length]
            part.index_copy_(0, targets, part.index_select(0, sources))
        self.states.move(sources, targets)

    def clear(self, slots: torch.Tensor) -> None:
        """Fill slots with zeros, so that what a non-finite request left cannot reach the next one."""
        for tensor in (*self.keys, *self.values):
            tensor.index_fill_(0, slots, 0.0)
        self.states.clear(slots)
