"""float32 masters of a model that computes in a lower precision, where one rank has all of it.

Guarantees: a forward computes with the masters as they are, rounded; what several backwards leave adds up in float32.
FSDP2 does the same with one rank, by copies and launches that take a fifth of a small model's step on a GPU.
Parameters that are not trained have no master, and lie in the lower precision alone.
"""

import torch
from torch import nn


class MasterCopies:
    """`masters`: float32 leaf tensors by the names of the trained parameters of `module`."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        """Takes the parameters over, which are float32: they become copies in `dtype`, and the masters take their
        memory."""
        self._params: dict[str, nn.Parameter] = {}
        self.masters: dict[str, torch.Tensor] = {}
        for name, param in module.named_parameters():
            whole = param.data
            param.data = whole.to(dtype)
            if param.requires_grad:
                self._params[name], self.masters[name] = param, whole.requires_grad_()
        self._sums: dict[str, torch.Tensor] = {}
        self._added = False
        # By `data`, which autograd does not watch: a graph of an earlier forward stays usable.
        self._copies = [param.data for param in self._params.values()]
        module.register_forward_pre_hook(self._refresh)

    @torch.no_grad()
    def _refresh(self, *_: object) -> None:
        torch._foreach_copy_(self._copies, list(self.masters.values()))

    @torch.no_grad()
    def add_gradients(self) -> None:
        """After each backward: add what it left at the parameters."""
        for name, param in self._params.items():
            if param.grad is None:
                continue
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(self.masters[name])
            room = self._sums[name]
            if self._added:
                room.add_(param.grad)
            else:
                room.copy_(param.grad)
            param.grad = None
        self._added = True

    def gradients(self) -> list[torch.Tensor | None]:
        """The sums since `clear`, in the order of `masters`; None for a parameter that got none."""
        return [self._sums.get(name) if self._added else None for name in self.masters]

    def clear(self) -> None:
        """Begin anew, in the same memory."""
        self._added = False
