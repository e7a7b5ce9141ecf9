"""The GPU that a part computes on: whether it can, and what it has room for.

Guarantees: whoever cannot compute there learns it before anything is allocated, in one message that says the way out.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from streamrl.errors import ConfigError

MARGIN = 512 * 2**20
"""Bytes that are left free: workspaces of libraries, and what the allocator loses to rounding."""


def usable_device(name: str, dtype: torch.dtype, key: str) -> torch.device:
    """The device `name`. key: of the configuration, which asks for it. Raises ConfigError where torch finds no GPU, its
    driver is too old for this torch, or it has no such numbers as `dtype`."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(f'{key} is "{name}", but {_why_none()}; set it to "cpu", or mend that')
    # What is emulated is slower than float32.
    if dtype is torch.bfloat16 and not torch.cuda.is_bf16_supported(including_emulation=False):
        major, minor = torch.cuda.get_device_capability(device)
        raise ConfigError(
            f'model.dtype is "bfloat16", and {torch.cuda.get_device_name(device)} (compute capability {major}.{minor}) '
            'computes none; set model.dtype = "float32", or take a GPU of compute capability 8.0 or above'
        )
    return device


def _why_none() -> str:
    """What keeps torch from a GPU, in its words: a build without CUDA, a driver that is too old, no device."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"torch {torch.__version__} cannot use a GPU here: {str(error).splitlines()[0].rstrip('. ')}"
    return f"torch {torch.__version__} finds no GPU here"


class GpuMemory(NamedTuple):
    """Bytes of a GPU: those that this process can still take, and all that it has."""

    free: int
    total: int

    @classmethod
    def of(cls, device: torch.device) -> "GpuMemory":
        """As it is now. What the allocator holds and nobody uses is free."""
        free, total = torch.cuda.mem_get_info(device)
        return cls(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), total)


def check_cache(size: int, room: GpuMemory) -> None:
    """Raises ConfigError where a KV cache of `size` bytes does not fit, with the number that does. Pure."""
    most = room.free - MARGIN
    if size <= most:
        return
    way_out = f"set rollout.kv_bytes to at most {most}" if most > 0 else "free the GPU, or take a larger one"
    raise ConfigError(
        f"a KV cache of {size} bytes ({_gib(size)}) does not fit on the GPU: {_gib(room.free)} of its "
        f"{_gib(room.total)} are free beside the weights and what others hold, and {_gib(MARGIN)} stay free for the "
        f"passes; {way_out}"
    )


@contextmanager
def explained_out_of_memory(what: str, way_out: str) -> Iterator[None]:
    """Turns torch's OutOfMemoryError into a ConfigError that says what did not fit, and `way_out`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        room, held = GpuMemory.of(torch.device("cuda")), torch.cuda.memory_allocated()
        others = max(0, room.total - room.free - held)
        raise ConfigError(
            f"{what} does not fit on the GPU: it has {_gib(room.total)}, of which this process holds {_gib(held)} and "
            f"others hold {_gib(others)}; {way_out}"
        ) from error


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
