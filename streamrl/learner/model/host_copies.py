"""Tensors of a GPU in the host's memory, copied beside what the GPU computes.

Guarantees: what is copied is what the tensors held at `mark`, as long as nobody writes to them before `copies` has
returned; the copy waits for no kernel that was launched after `mark`. Memory is pinned, taken at the first call and
used again: what a call returns is valid until the next.
"""

from collections.abc import Mapping

import torch


class HostCopies:
    """Of one device. `mark` is called by the thread that computes, `copies` by another one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._ready = torch.cuda.Event()
        self._rooms: dict[str, torch.Tensor] = {}

    def mark(self) -> None:
        """From here on in the current stream the tensors are what is to be copied."""
        self._ready.record()

    def copies(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The tensors in the host's memory, by the same names."""
        if not self._rooms:
            self._rooms = {
                name: torch.empty(one.shape, dtype=one.dtype, pin_memory=True) for name, one in tensors.items()
            }
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._ready)
            for name, one in tensors.items():
                self._rooms[name].copy_(one, non_blocking=True)
        self._stream.synchronize()
        return self._rooms
