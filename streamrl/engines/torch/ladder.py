"""Which ways to multiply rows (`products`) hold on this machine for a model's shapes, the fastest first.

Two questions are asked of each: whether rows have the bits that they have with more rows behind them (company), and
whether they keep them where they stand elsewhere in the matrix (place). The answers are a property of the processor,
of the library and of a shape. What was seen: MKL with AVX2 keeps rows independent from 4 rows on, with AVX-512 from 3
to 16, on one processor for no number of rows; in its compatible mode, for none.

`batch_invariance` then proves the engine that multiplies so.
"""

import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from streamrl.engines.torch.eager.own_products import OwnProducts
from streamrl.engines.torch.products import TILE, OneDnnProducts, PlainProducts, RowProducts, Rung, TiledProducts
from streamrl.errors import BatchDependenceError
from streamrl.system.kernel_cache import compiles_kernels
from streamrl.system.processor import is_strict, processor, vendor_and_flags
from streamrl.types import Arithmetic

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(rows [R, inner], weight [inner, columns]) to [R, columns]."""

LEAST_ROWS = 4
"""Of a pass whose rows are to be independent, where that is not measured: 1, 2 and 3 rows differ on each machine that
was seen."""
COUNTS = (*range(1, 65), 96, 100, 128, 200, 256, 384)
"""Rows of the products that are compared, the last with all others."""
MOST_PADDED = 32
"""A library that needs more rows than that to keep them independent is not used plainly: a pass of one row would cost
too much."""
SHIFTS = (1, 2, 3, 5, 8, 13)
"""By how many places rows are moved."""
SIZES = (256, 64, TILE)
"""Of tiles that are tried."""
MOST_NUMBERS = 2**21
"""Of a weight that is measured. Switches depend on the inner length; of columns as many are taken as that leaves."""
LEAST_COLUMNS = 256
LARGE = 2**17
"""Numbers of a weight, on average, from which on oneDNN's speed pays for its 10 µs a call, and for the 0.4 ms that it
takes for a number of rows that is new to it."""
SETTINGS = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "NUMBA_DISABLE_JIT")
"""Variables that have a library compute as on another processor, or forbid our kernels."""


@dataclass(frozen=True, slots=True)
class Dependence:
    """Where rows depended: on `rows` rows of a product by [inner, columns] weights."""

    inner: int
    columns: int
    rows: int
    on: str

    def __str__(self) -> str:
        return f"a row of {self.rows} by {self.inner} x {self.columns} weights depends on its {self.on}"


@dataclass(frozen=True, slots=True)
class Held:
    """A way that holds, and why it is that one."""

    products: RowProducts
    why: str


class Ladder:
    """The way that an engine takes: the fastest that holds for its shapes, and the next one where its proof fails.

    products: the ways to take, where they are given.
    """

    def __init__(
        self,
        shapes: Collection[tuple[int, int]],
        dtype: torch.dtype,
        device: torch.device,
        products: Sequence[RowProducts] = (),
    ) -> None:
        self._processor = ", ".join([processor(), *settings(os.environ)])
        if products:
            self._rungs = iter([Held(one, "it was asked for") for one in products])
        elif device.type != "cpu":
            self._rungs = iter([Held(PlainProducts(LEAST_ROWS), "a GPU's kernels are not measured")])
        else:
            self._rungs = held_rungs(shapes, dtype, libraries_for(shapes, dtype, *vendor_and_flags()))
        self._held = next(self._rungs, None)
        self._dependence = "each way to multiply rows makes one depend on the others"

    @property
    def holds(self) -> bool:
        """Whether there is a way that was not seen to fail."""
        return self._held is not None

    @property
    def products(self) -> RowProducts | None:
        """The way that is taken; None where none holds."""
        return None if self._held is None else self._held.products

    @property
    def arithmetic(self) -> Arithmetic:
        if self._held is None:
            return Arithmetic("none", self._dependence, self._processor)
        return Arithmetic(self._held.products.rung.value, self._held.why, self._processor)

    def descend(self, found: BatchDependenceError, required: bool) -> None:
        """Take the next way: `found` is what the proof of this one found. Raises BatchDependenceError where there is
        none and one is required."""
        before, self._held = self._held, next(self._rungs, None)
        if self._held is not None:
            return
        tried = (
            "" if before is None else f", also by the last way to multiply rows, {before.products.rung} ({before.why})"
        )
        threads = torch.get_num_threads()
        self._dependence = f"{found}{tried}, on {self._processor} by {threads} thread{'s' if threads > 1 else ''}"
        if required:
            fewer = "run the engine with one thread (rollout.threads = 1), or " if threads > 1 else ""
            way_out = f"{fewer}set rollout.deterministic = false"
            raise BatchDependenceError(f"torch engine, self-test: {self._dependence}; {way_out}")


class Probe:
    """A weight as the engine's lie, [columns, inner] in memory, and rows to multiply with it. multiply: the library."""

    def __init__(self, inner: int, columns: int, dtype: torch.dtype, multiply: Multiply = torch.mm) -> None:
        self._multiply = multiply
        random = torch.Generator().manual_seed(inner)
        columns = min(columns, max(LEAST_COLUMNS, MOST_NUMBERS // inner))
        self.weight = torch.randn(columns, inner, generator=random).to(dtype).t()
        self.rows = torch.randn(COUNTS[-1], inner, generator=random).to(dtype)

    def product(self, count: int) -> torch.Tensor:
        """Of the first rows."""
        return self._multiply(self.rows[:count], self.weight)

    def keeps_places(self, count: int) -> bool:
        """Whether the first rows have the same bits where they stand elsewhere among themselves."""
        rows, product = self.rows[:count], self.product(count)
        shifts = [shift for shift in SHIFTS if shift < count]
        return all(torch.equal(self._multiply(rows.roll(n, 0), self.weight), product.roll(n, 0)) for n in shifts)

    def takes_tiles_of(self, size: int) -> bool:
        """Whether a tile of that size gives the bits of the smallest ones, at each place."""
        small = torch.cat([self._multiply(part, self.weight) for part in self.rows[:size].split(TILE)])
        return torch.equal(self.product(size), small) and self.keeps_places(size)

    def depends(self, rows: int, on: str) -> Dependence:
        inner, columns = self.weight.shape
        return Dependence(inner, columns, rows, on)


def settings(environment: Mapping[str, str]) -> list[str]:
    """Those of `SETTINGS` that are set; what streamrl sets itself is not told."""
    named = {name: environment[name] for name in SETTINGS if environment.get(name)}
    if is_strict(environment):
        named.pop("MKL_CBWR")
    return [f"{name}={value}" for name, value in named.items()]


@dataclass(frozen=True, slots=True)
class Library:
    """One that multiplies any number of rows. held: as a rung, with passes of so many rows at least."""

    name: str
    multiply: Multiply
    held: Callable[[int], Held]


def held_rungs(
    shapes: Collection[tuple[int, int]], dtype: torch.dtype, libraries: Sequence[Library], multiply: Multiply = torch.mm
) -> Iterator[Held]:
    """Those that hold on this CPU, measured one after the other as they are asked for. shapes: [inner, columns] of each
    weight that is multiplied with. libraries: the quicker first. multiply: of tiles."""
    sizes, why = sorted(set(shapes)), []
    for library in libraries:
        least = least_rows([Probe(*size, dtype, library.multiply) for size in sizes])
        if isinstance(least, Dependence):
            why.append(f"by {library.name} {least}")
        else:
            held = library.held(least)
            yield held if not why else Held(held.products, f"{held.why}; {'; '.join(why)}")
            why.append(f"by {library.name} a row depends on its company in the engine")
    told = "; ".join(why)
    if tiled := tile_sizes([Probe(*size, dtype, multiply) for size in sizes]):
        yield Held(
            TiledProducts(tiled), f"in tiles of {', '.join(map(str, tiled))} rows none depends on others; {told}"
        )
    if dtype is torch.float32 and compiles_kernels():
        yield Held(OwnProducts(), f"{told}; in tiles, too")


def libraries_for(
    shapes: Collection[tuple[int, int]], dtype: torch.dtype, vendor: str, flags: Collection[str]
) -> list[Library]:
    """Of this installation, the quicker one first. shapes: of the weights. vendor, flags: of the processor, as Linux
    names them.

    MKL takes AVX-512 on Intel's processors only, where oneDNN takes it on any: twice as quick on another maker's, for
    weights that are not tiny.
    """
    found = [Library("the library", torch.mm, plain_rung)]
    if dtype is torch.float32 and torch.backends.mkldnn.is_available():
        wide = "avx512f" in flags and vendor != "GenuineIntel" and not os.environ.get("ONEDNN_MAX_CPU_ISA")
        large = sum(inner * columns for inner, columns in shapes) >= LARGE * len(shapes)
        found.insert(0 if wide and large else 1, Library("oneDNN", OneDnnProducts.multiply, onednn_rung))
    return found


def least_rows(probes: Collection[Probe]) -> int | Dependence:
    """The fewest rows from which on the library keeps rows independent in every product, at most `MOST_PADDED`; else
    where it does not."""
    least = 1
    for probe in probes:
        whole = probe.product(COUNTS[-1])
        differing = (count for count in reversed(COUNTS) if not torch.equal(probe.product(count), whole[:count]))
        most = next(differing, 0)
        if most >= MOST_PADDED:
            return probe.depends(most, "company")
        least = max(least, most + 1)
    for probe in probes:
        for count in (least, least + 1, MOST_PADDED + 5, COUNTS[-1]):
            if not probe.keeps_places(count):
                return probe.depends(count, "place")
    return least


def tile_sizes(probes: Collection[Probe]) -> tuple[int, ...]:
    """Sizes of tiles in which the library keeps rows independent of their place, and which agree to the bit; none
    where `TILE` rows do not."""
    if not all(probe.keeps_places(TILE) for probe in probes):
        return ()
    larger = [size for size in SIZES[:-1] if all(probe.takes_tiles_of(size) for probe in probes)]
    return (*larger, TILE)


def onednn_rung(least: int) -> Held:
    return Held(OneDnnProducts(least), f"oneDNN keeps rows independent{_from(least)}")


def plain_rung(least: int) -> Held:
    if least == 1 and is_strict(os.environ):
        return Held(PlainProducts(1, Rung.STRICT), "MKL's strict mode keeps each row independent")
    return Held(PlainProducts(least), f"the library keeps rows independent{_from(least)}")


def _from(least: int) -> str:
    return f" from {least} on" if least > 1 else ""


def main(order: str) -> None:
    """Print what a `Ladder` finds for {"shapes": ..., "dtype": ...} in JSON."""
    asked = json.loads(order)
    shapes = [(inner, columns) for inner, columns in asked["shapes"]]
    print(Ladder(shapes, getattr(torch, asked["dtype"]), torch.device("cpu")).arithmetic)


if __name__ == "__main__":
    main(sys.argv[1])
