"""How a layer of the model is computed: again in the backward, compiled, with its parameters in the CPU's memory.

Guarantees: none of it changes a parameter's name, or a loss or gradient beyond rounding (activation checkpointing and
offload not even that). Each is done to a layer's own `forward`, so what FSDP2 hangs on the layer stays outside of it
and runs once.
"""

import os
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from torch.utils.checkpoint import checkpoint

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.errors import ConfigError
from streamrl.learner.attention.torch_varlen import KeptAttention

Forward = Callable[..., Any]


def prepare(layer: nn.Module, execution: ExecutionConfig, device: torch.device) -> None:
    """Do to `layer` what `execution` says, before it is sharded. Raises ConfigError where it cannot be compiled."""
    if execution.compile:
        _require_compiler(device)
        # Packs differ in length; the attention between is left out (`attention.packed_attention`).
        layer.forward = torch.compile(layer.forward, dynamic=True)
    if execution.activation_checkpointing:
        layer.forward = partial(_recomputed, layer.forward, not execution.recompute_attention)


def _recomputed(forward: Forward, keeps_attention: bool, hidden_states: torch.Tensor, **settings: Any) -> Any:
    """What `forward` gives, with nothing kept for the backward but its inputs, and what its attention gave."""
    if keeps_attention:
        settings["kept"] = KeptAttention()
    # No dropout, so no state of a generator to keep.
    return checkpoint(forward, hidden_states, use_reentrant=False, preserve_rng_state=False, **settings)


def offload_policy(execution: ExecutionConfig, device: torch.device) -> OffloadPolicy:
    """What FSDP2 is told. Memory of the CPU is pinned where there is a device to copy to."""
    return CPUOffloadPolicy(pin_memory=device.type == "cuda") if execution.offload else OffloadPolicy()


def _require_compiler(device: torch.device) -> None:
    names = (os.environ.get("CXX", ""), "g++", "c++", "clang++")
    if device.type == "cpu" and not any(name and shutil.which(name) for name in names):
        raise ConfigError(
            "learner.execution.compile = true needs a C++ compiler on a CPU, and neither g++ nor clang++ is on the "
            "PATH; install one, or set it to false"
        )
