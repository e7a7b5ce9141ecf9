"""The modules of a decoder that mix tokens outside of attention: short convolutions, linear attention, state spaces.

Each of them is causal, begins with empty states, and takes [rows, tokens, hidden]. So a row is computed exactly where
it is given to them alone, or beside rows of its own length: whoever packs rows replaces their forward by such a one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Mix = Callable[..., torch.Tensor]
"""A mixer's own forward: (hidden [rows, tokens, hidden size]) to the same shape; `cache=` continues its states."""


def mixers_of(decoder: nn.Module) -> list[nn.Module]:
    """Those that own a convolution over tokens, in the order of their layers. transformers builds each of them so, and
    a layer that mixes in another way is found by the self-tests of who packs."""
    return [
        module
        for name, module in decoder.named_modules()
        if name and any(isinstance(child, nn.Conv1d) for child in module.children())
    ]


def replace_forward(module: nn.Module, forward: Callable[[Mix, torch.Tensor], torch.Tensor]) -> None:
    """Have a mixer compute by `forward(own, hidden)`, whatever else it is called with: masks, caches and arguments of
    attention are nothing to it."""
    own: Mix = module.forward

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def replaced(hidden_states: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        return forward(own, hidden_states)

    module.forward = replaced  # type: ignore[method-assign, unused-ignore]
