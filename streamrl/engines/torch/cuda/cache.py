"""The paged KV cache: one buffer for all layers, allocated once, bounded in bytes, written in place.

Guaranteed: memory never grows after construction, and it is at most `kv_bytes`. Nothing moves when rows move; a page
is copied only for a row that shares its first tokens and goes on in the middle of a page.
"""

from collections.abc import Sequence

import torch

from streamrl.engines.torch.cuda.pages import PAGE, pages_for
from streamrl.engines.torch.families import ModelShape
from streamrl.errors import ConfigError
from streamrl.models.gpu import GpuMemory, check_cache


class PagedCache:
    """Keys and values: [layers, pages, 2, kv_heads, PAGE, head_dim].

    Raises ConfigError when `kv_bytes` do not hold one request of `max_length` tokens, or the GPU does not hold them.
    """

    def __init__(
        self, shape: ModelShape, *, slots: int, max_length: int, kv_bytes: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.token_bytes = shape.num_layers * 2 * shape.num_kv_heads * shape.head_dim * dtype.itemsize
        page_bytes = self.token_bytes * PAGE
        self.width = pages_for(max_length)
        # One page more than rows can hold is nobody's (see `pages`).
        self.pages = min(kv_bytes // page_bytes, slots * self.width + 1)
        if self.pages < self.width + 1:
            least = (self.width + 1) * page_bytes
            raise ConfigError(
                f"kv_bytes is {kv_bytes}, but one request of {max_length} tokens takes {least} bytes of KV "
                f"cache: set rollout.kv_bytes to at least {least}, or shorten the requests"
            )
        self.page_bytes = page_bytes
        self.total_bytes = self.pages * page_bytes
        if device.type == "cuda":
            check_cache(self.total_bytes, GpuMemory.of(device))
        size = (shape.num_layers, self.pages, 2, shape.num_kv_heads, PAGE, shape.head_dim)
        self._data = torch.zeros(size, dtype=dtype, device=device)
        self.layers = self._data.unbind()

    def copy_pages(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy whole pages of all layers, all at once."""
        if not sources:
            return
        index = torch.tensor([sources, targets], device=self._data.device)
        self._data.index_copy_(1, index[1], self._data.index_select(1, index[0]))
