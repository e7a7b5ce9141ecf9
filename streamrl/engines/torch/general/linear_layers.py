"""A model's own linear layers, multiplied by `RowProducts`: each call of `F.linear` while the model runs."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from streamrl.engines.torch.products import PlainProducts, RowProducts

_MATMULS = (torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__)
"""Of rows by a matrix of weights, as experts are written in some models."""


def linear_layers_by(products: RowProducts) -> AbstractContextManager[object]:
    """Within it, linear layers go by `products`. The library's own way costs nothing."""
    return nullcontext() if isinstance(products, PlainProducts) else _LinearLayers(products)


class _LinearLayers(TorchFunctionMode):
    def __init__(self, products: RowProducts) -> None:
        super().__init__()
        self._products = products

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is F.linear:
            return self._linear(*args, **(kwargs or {}))
        if function in _MATMULS and len(args) == 2 and args[1].ndim == 2:
            return self._linear(args[0], args[1].t())
        return function(*args, **(kwargs or {}))

    def _linear(self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        rows = input.flatten(0, -2).contiguous()
        product = self._products.linear(rows, weight.t(), bias)
        return product.unflatten(0, input.shape[:-1])  # type: ignore[no-any-return]  # torch has no type for it
