"""Attention over all segments of a pack in one call, by the kernel that is here.

Guarantees: causal, bottom-right aligned, without dropout, whichever kernel it is. flash-attn 3 (the module
`flash_attn_interface`), then flash-attn 2 (`flash_attn`) where they are installed and compute on this GPU, then torch's
own; `kernel_for` says "segments" where none of them does: the caller attends segment by segment. Gradients are added in
no fixed order, so the last bits of a backward differ from one to the next, whichever kernel it is. Knows nothing of how
a pack is laid out.
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

from streamrl.learner.attention.torch_varlen import KeptAttention, TorchVarlen

FLASH_MODULES = ("flash_attn_interface", "flash_attn")
"""Best first."""
Capability = tuple[int, int]
"""A GPU's generation, as CUDA counts it."""
AMPERE: Capability = (8, 0)
"""The first that any of the kernels computes on."""
HOPPER = 9
"""The only generation that flash-attn 3 has kernels for."""
WIDEST_HEAD = 256
HEAD_MULTIPLE = 8
_DTYPES = (torch.bfloat16, torch.float16)


class Lengths(NamedTuple):
    """Of S segments. cu_q, cu_k: int32 [S + 1], ends of their queries and keys. max_q, max_k: of the longest."""

    cu_q: torch.Tensor
    cu_k: torch.Tensor
    max_q: int
    max_k: int


Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Lengths, float | None], torch.Tensor]
"""query [T, heads, head_dim], key and value [K, kv_heads, head_dim], their lengths, the scale; [T, heads, head_dim]."""


def capability_of(device: torch.device) -> Capability | None:
    """None for a CPU, which has none."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def kernel_for(
    capability: Capability | None, head_dim: int, dtype: torch.dtype, installed: Callable[[], tuple[str, ...]]
) -> str:
    """What computes: one of `installed` (names of FLASH_MODULES), "torch", or "segments". Asks for what is installed
    only where that can compute. Pure.

    The limits are those that each checks for itself when it is called, in `hopper/flash_api.cpp` and
    `csrc/flash_attn/flash_api.cpp` of flash-attn and in ATen's copy of the latter; flash-attn 3 has kernels for Hopper
    alone, and can be imported anywhere.
    """
    if capability is None or capability < AMPERE or head_dim > WIDEST_HEAD or dtype not in _DTYPES:
        return "segments"
    there, whole = installed(), head_dim % HEAD_MULTIPLE == 0
    computes = {"flash_attn_interface": whole and capability[0] == HOPPER, "flash_attn": True}  # which pads heads
    best = next((name for name in FLASH_MODULES if name in there and computes[name]), None)
    return best or ("torch" if whole else "segments")


@cache
def installed_kernels() -> tuple[str, ...]:
    """Those of FLASH_MODULES that can be imported here. One that is there and cannot, as after another torch was
    installed, is warned of once."""
    found = []
    for name in FLASH_MODULES:
        if importlib.util.find_spec(name) is None:
            continue
        try:
            importlib.import_module(name)
        except ImportError as error:
            what = f"{name} is installed and cannot be imported, so attention goes on without it: {error}"
            warnings.warn(f"{what}; install the build for torch {torch.__version__}, or remove it", stacklevel=2)
        else:
            found.append(name)
    return tuple(found)


def kernel(name: str, kept: KeptAttention | None = None) -> Kernel:
    """The kernel that `kernel_for` named. kept: where torch's keeps its output, or finds it; the others compute
    again."""
    return _torch(kept) if name == "torch" else _flash(importlib.import_module(name))


def _flash(module: Any) -> Kernel:
    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Lengths, scale: float | None
    ) -> torch.Tensor:
        found = module.flash_attn_varlen_func(query, key, value, *lengths, softmax_scale=scale, causal=True)
        # The first releases of flash-attn 3 give the log-sum-exp too.
        return found[0] if isinstance(found, tuple) else found

    return attend


def _torch(kept: KeptAttention | None) -> Kernel:
    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: Lengths, scale: float | None
    ) -> torch.Tensor:
        output: torch.Tensor = TorchVarlen.apply(query, key, value, *lengths, scale, kept)
        return output

    return attend
