"""A pass as something that is replayed: a CUDA graph on a GPU, the function itself elsewhere.

Guaranteed: `replay` does what the function did, on the same tensors, with whatever they hold then. What the function
allocates is taken once, from memory that all graphs of one maker share: so one replay's results are gone at the next.
"""

from collections.abc import Callable
from typing import Protocol

import torch

WARM_UP = 2
"""Calls before a capture: kernels are compiled and workspaces allocated in them."""


class GraphMaker(Protocol):
    def capture(self, run: Callable[[], None]) -> Callable[[], object]:
        """What replays `run`, which neither waits for the device nor looks at a number on it."""
        ...


class CudaGraphMaker:
    """Captures on `device`. To be called while nothing else of this process runs there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, run: Callable[[], None]) -> Callable[[], object]:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP):
                run()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Another thread may allocate meanwhile: only this one's calls are looked at.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return graph.replay


class DirectCalls:
    """Replays by calling: what a CPU does instead."""

    def capture(self, run: Callable[[], None]) -> Callable[[], object]:
        run()
        return run
