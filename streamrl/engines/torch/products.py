"""How rows are multiplied by weights, so that a row's bits do not depend on the rows beside it.

A matrix library takes another kernel for few rows than for many, and on some processors for a row's place, so the last
bits of a row differ with its company. A rung is a way to multiply under which they do not:

    plain    the library, with as many rows as it needs to keep them independent
    strict   the same under MKL's strict reproducible mode, which keeps a single row independent, too
    onednn   oneDNN in place of the library: it sums a row in one order whatever the others, at each number of rows
    tiles    the library in calls of one shape for ever: it has nothing to choose by
    own      a compiled product in an order of ours (`eager.own_products`)

`ladder` says which of them hold on a machine. It knows no model and no request.

Shapes: R rows, I inner length, O outputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 16
"""Rows of the smallest tile. Others hold whole numbers of it."""


class Rung(StrEnum):
    """See the module."""

    PLAIN = "plain"
    STRICT = "strict"
    ONEDNN = "onednn"
    TILES = "tiles"
    OWN = "own"


class RowProducts(Protocol):
    """min_rows: that a pass must have. Weights are [I, O], in any layout."""

    rung: Rung
    min_rows: int

    def linear(self, x_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out: Tensor | None = None) -> Tensor:
        """x weight + bias, [R, O]. out: where it goes, with the same bits."""
        ...

    def add_linear(
        self, x_RO: Tensor, inner_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        """x + (inner weight + bias), [R, O]. out: where it goes, which may be x."""
        ...


class PlainProducts:
    """The library's own products, of any number of rows."""

    def __init__(self, min_rows: int = 1, rung: Rung = Rung.PLAIN) -> None:
        self.min_rows, self.rung = min_rows, rung

    def linear(self, x_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out: Tensor | None = None) -> Tensor:
        if bias_O is None:
            return torch.mm(x_RI, weight_IO, out=out)
        return torch.addmm(bias_O, x_RI, weight_IO, out=out)

    def add_linear(
        self, x_RO: Tensor, inner_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        if bias_O is None:
            return torch.addmm(x_RO, inner_RI, weight_IO, out=out)
        return torch.add(x_RO, torch.addmm(bias_O, inner_RI, weight_IO), out=out)


class AddedProducts(ABC):
    """What all have alike whose sum is an operation of its own."""

    @abstractmethod
    def linear(self, x_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out: Tensor | None = None) -> Tensor: ...

    def add_linear(
        self, x_RO: Tensor, inner_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        return torch.add(x_RO, self.linear(inner_RI, weight_IO, bias_O), out=out)


class OneDnnProducts(AddedProducts):
    """oneDNN's products, which torch itself takes for half precision only. A weight is read as it lies in a checkpoint,
    [O, I]."""

    rung = Rung.ONEDNN

    def __init__(self, min_rows: int = 1) -> None:
        self.min_rows = min_rows

    @staticmethod
    def multiply(x_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None = None) -> Tensor:
        """x weight + bias, [R, O]."""
        # The operator that torch's own compiler puts in place of linear layers; it has no public name.
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x_RI, weight_IO.t(), bias_O, "none", [], "")
        return product

    def linear(self, x_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out: Tensor | None = None) -> Tensor:
        product = self.multiply(x_RI, weight_IO, bias_O)
        return product if out is None else out.copy_(product)


class TiledProducts(AddedProducts):
    """The library's products of exactly `TILE` rows, the last padded with zeros; or of larger tiles, where these give
    the same bits.

    sizes: rows of a tile, the largest first, `TILE` last.
    """

    rung = Rung.TILES
    min_rows = 1

    def __init__(self, sizes: Sequence[int] = (TILE,)) -> None:
        assert sizes[-1] == TILE, "the smallest tile takes what the others leave"
        self.sizes = tuple(sizes)

    def linear(self, x_RI: Tensor, weight_IO: Tensor, bias_O: Tensor | None, out: Tensor | None = None) -> Tensor:
        out = x_RI.new_empty(x_RI.shape[0], weight_IO.shape[1]) if out is None else out
        product = self._multiply(x_RI, weight_IO, out)
        return product if bias_O is None else product.add_(bias_O)

    def _multiply(self, x_RI: Tensor, weight_IO: Tensor, out: Tensor) -> Tensor:
        rows = x_RI.shape[0]
        for start, size in tiles(rows, self.sizes):
            part = x_RI[start : start + size]
            if len(part) == size:
                torch.mm(part, weight_IO, out=out[start : start + size])
            else:
                out[start:] = torch.mm(F.pad(part, (0, 0, 0, size - len(part))), weight_IO)[: len(part)]
        return out


def tiles(rows: int, sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first row, size) of each tile: as many of the largest as fit, then of the next; the last one may go beyond."""
    start = 0
    for size in sizes[:-1]:
        while rows - start >= size:
            yield start, size
            start += size
    while start < rows:
        yield start, sizes[-1]
        start += sizes[-1]
