"""What a pass drew, on its way to the host: one small copy a pass, read one pass late.

Guaranteed: `take` gives results in the order in which they were sent, and waits for the oldest alone.
"""

from collections import deque

import numpy as np
import torch

from streamrl.types import FloatArray, LongArray

AHEAD = 2
"""Results that may be on their way at once."""


class Readback:
    """`tokens` (int32 [B]) and `logprobs` (float32 [B]) on the device, written by each pass."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self._both = torch.zeros(2, rows, dtype=torch.int32, device=device)
        self.tokens, self.logprobs = self._both[0], self._both[1].view(torch.float32)
        on_gpu = device.type == "cuda"
        self._rooms = [torch.zeros(2, rows, dtype=torch.int32, pin_memory=on_gpu) for _ in range(AHEAD)]
        self._events = [torch.cuda.Event() for _ in range(AHEAD)] if on_gpu else []
        self._sent: deque[int] = deque()
        self._next = 0

    def __len__(self) -> int:
        return len(self._sent)

    def send(self) -> None:
        """Copy what the pass in the current stream writes, once it has."""
        assert len(self._sent) < AHEAD, "the oldest results were not taken"
        self._rooms[self._next].copy_(self._both, non_blocking=True)
        if self._events:
            self._events[self._next].record()
        self._sent.append(self._next)
        self._next = (self._next + 1) % AHEAD

    def take(self, rows: int) -> tuple[LongArray, FloatArray]:
        """Wait for the oldest. Returns tokens int64 and log-probs float32 of the first rows."""
        place = self._sent.popleft()
        if self._events:
            self._events[place].synchronize()
        host = self._rooms[place][:, :rows].numpy()
        return host[0].astype(np.int64), host[1].view(np.float32).copy()
