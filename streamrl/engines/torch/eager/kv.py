"""The KV cache: a fixed number of slots of equal length, allocated once, bounded in bytes.

Guaranteed: memory never grows after construction, and it is at most `kv_bytes`. What lies beyond a slot's
length is stale but finite (`clear` is called for a slot whose numbers were not), so a masked read of it adds
exact zeros. The cache knows neither requests nor lengths.
"""

import numpy as np
import torch

from streamrl.engines.torch.eager.attention import round_up
from streamrl.engines.torch.families import ModelShape
from streamrl.errors import ConfigError
from streamrl.types import FloatArray, LongArray


class KvCache:
    """Keys and values of all layers: [layers, 2, slots, kv_heads, capacity, head_dim].

    `slots` may be fewer than were asked for: what fits in `kv_bytes`. Raises ConfigError when not one does.
    """

    def __init__(
        self,
        shape: ModelShape,
        *,
        slots: int,
        max_length: int,
        kv_bytes: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.capacity = round_up(max_length)
        self.token_bytes = shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        slot_bytes = self.token_bytes * self.capacity
        self.slots = min(slots, kv_bytes // slot_bytes)
        if self.slots < 1:
            raise ConfigError(
                f"kv_bytes is {kv_bytes}, but one request of {max_length} tokens takes {slot_bytes} bytes of KV "
                f"cache: set rollout.kv_bytes to at least {slot_bytes}, or shorten the requests"
            )
        self.total_bytes = slot_bytes * self.slots
        self._heads = shape.num_kv_heads
        size = (shape.num_layers, 2, self.slots, self._heads, self.capacity, shape.head_dim)
        # Zeros, not empty memory: a NaN left there would survive a mask (0 * NaN is NaN).
        self._data = torch.zeros(size, dtype=dtype, device=device)
        self._flat = self._data.view(shape.num_layers, -1, shape.head_dim).unbind()
        lanes = self._data.view(shape.num_layers, 2, -1, self.capacity, shape.head_dim)
        self._keys, self._values = lanes[:, 0].unbind(), lanes[:, 1].unbind()
        self._lines: list[FloatArray] = []
        self._arrays: list[tuple[FloatArray, FloatArray]] = []
        if device.type == "cpu" and dtype is torch.float32:
            self._lines = [lines.numpy() for lines in self._flat]
            self._arrays = [(keys, values) for keys, values in self._data.numpy()]
        lane = np.arange(2)[:, None, None] * self.slots + np.arange(self.slots)[None, :, None]
        lane = (lane * self._heads + np.arange(self._heads)) * self.capacity
        self._lane_start = lane.transpose(1, 0, 2).reshape(self.slots, 2 * self._heads)

    def targets(self, slots_W: LongArray, positions_W: LongArray) -> LongArray:
        """Where W tokens go: int64 [W * 2 kv_heads], for `write`."""
        return (self._lane_start[slots_W] + positions_W[:, None]).reshape(-1)

    def write(self, layer: int, kv_WHD: torch.Tensor, targets: torch.Tensor) -> None:
        """Store W tokens' key and value heads, [W, 2 kv_heads, D], at `targets`."""
        self._flat[layer].index_copy_(0, targets, kv_WHD.reshape(-1, kv_WHD.shape[-1]))

    def read(self, layer: int, first: int, stop: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of slots first..stop-1, each a view [(stop - first) * kv_heads, length, D]."""
        lanes = slice(first * self._heads, stop * self._heads)
        return self._keys[layer][lanes, :length], self._values[layer][lanes, :length]

    def lines(self, layer: int) -> FloatArray:
        """The whole layer on the host as lines [2 slots kv_heads capacity, D], where `targets` points; float32."""
        return self._lines[layer]

    def arrays(self, layer: int) -> tuple[FloatArray, FloatArray]:
        """Keys and values on the host, each a view [slots, kv_heads, capacity, D]; float32."""
        return self._arrays[layer]

    def move(self, sources: torch.Tensor, targets: torch.Tensor, length: int) -> None:
        """Copy the first `length` positions of slots `sources` over slots `targets` (int64), all at once."""
        data = self._data[..., :length, :]
        data.index_copy_(2, targets, data.index_select(2, sources))

    def clear(self, slots: torch.Tensor) -> None:
        """Fill slots with zeros, so that what a non-finite request left cannot reach the next one."""
        self._data.index_fill_(2, slots, 0.0)
