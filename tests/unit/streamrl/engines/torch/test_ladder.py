"""The ladder takes the fastest way to multiply rows that holds, and says why it is no faster one."""

import pytest
import torch
from support.kernels import NEEDS_KERNELS

from streamrl.engines.torch.ladder import (
    MOST_PADDED,
    Held,
    Ladder,
    Library,
    Multiply,
    held_rungs,
    libraries_for,
    onednn_rung,
    plain_rung,
    settings,
)
from streamrl.engines.torch.products import TILE, PlainProducts, Rung, TiledProducts
from streamrl.errors import BatchDependenceError

SHAPES = [(64, 192), (24, 64), (96, 211)]
OFF = 1.0 + 2.0**-20


def exact(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A library that keeps all rows independent, since it sees one at a time."""
    return torch.stack([(row[:, None] * weight).sum(0) for row in rows])


def few_rows_differ(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return exact(rows, weight) * (OFF if len(rows) < 6 else 1.0)


def company_shows(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """At each number of rows that is no multiple of 16, as a kernel with another one for the rest does."""
    return exact(rows, weight) * (OFF if len(rows) % TILE else 1.0)


def place_shows(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Behind the first 40 rows."""
    product = exact(rows, weight)
    product[40:] *= OFF
    return product


def place_shows_everywhere(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    product = exact(rows, weight)
    product[1::2] *= OFF
    return product


def one_shape_differs(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return exact(rows, weight) * (OFF if weight.shape[0] == 96 and len(rows) < 20 else 1.0)


def found(multiply: Multiply) -> list[Held]:
    return list(held_rungs(SHAPES, torch.float32, [Library("the library", multiply, plain_rung)], multiply))


def rungs(first: Multiply, second: Multiply, dtype: torch.dtype = torch.float32) -> list[Held]:
    """Of two libraries."""
    libraries = [Library("A", first, onednn_rung), Library("B", second, plain_rung)]
    return list(held_rungs(SHAPES, dtype, libraries, exact))


@pytest.mark.parametrize(
    ("library", "least"),
    [(exact, 1), (few_rows_differ, 6), (one_shape_differs, 20)],
    ids=["exact", "few rows differ", "one shape differs"],
)
def test_a_library_that_needs_some_rows_is_given_them(
    library: Multiply, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MKL_CBWR", raising=False)
    first = found(library)[0]
    assert (first.products.rung, first.products.min_rows) == (Rung.PLAIN, least)
    assert ("from" in first.why) == (least > 1)


@pytest.mark.parametrize(
    ("library", "rung"), [(exact, Rung.STRICT), (few_rows_differ, Rung.PLAIN)], ids=["exact", "few rows differ"]
)
def test_strict_is_what_keeps_a_single_row_where_it_was_asked_for(
    library: Multiply, rung: Rung, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MKL_CBWR", "AUTO,STRICT")
    assert found(library)[0].products.rung is rung


def test_where_rows_depend_on_company_tiles_are_taken_and_the_message_names_the_product() -> None:
    first = found(company_shows)[0]
    assert isinstance(first.products, TiledProducts)
    assert first.products.sizes == (256, 64, TILE)
    assert first.why == (
        "in tiles of 256, 64, 16 rows none depends on others; "
        "by the library a row of 200 by 24 x 64 weights depends on its company"
    )


def test_a_larger_tile_is_left_out_where_it_gives_other_bits() -> None:
    first = found(place_shows)[0]
    assert isinstance(first.products, TiledProducts)
    assert first.products.sizes == (TILE,)
    assert "depends on its" in first.why


@NEEDS_KERNELS
def test_where_place_shows_in_a_tile_too_the_own_product_is_left() -> None:
    (only,) = found(place_shows_everywhere)
    assert only.products.rung is Rung.OWN
    assert only.why.endswith("depends on its place; in tiles, too")


@NEEDS_KERNELS
def test_no_rung_is_left_out_below_the_first() -> None:
    assert [held.products.rung for held in found(few_rows_differ)][1:] == [Rung.TILES, Rung.OWN]


def test_a_format_without_compiled_kernels_has_no_rung_below_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    assert [held.products.rung for held in found(few_rows_differ)] == [Rung.PLAIN, Rung.TILES]
    assert [held.products.rung for held in rungs(exact, exact, torch.bfloat16)][2:] == [Rung.TILES]


def test_a_library_is_asked_where_the_quicker_one_does_not_hold_and_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MKL_CBWR", raising=False)
    assert [held.products.rung for held in rungs(exact, exact)][:2] == [Rung.ONEDNN, Rung.PLAIN]
    second = rungs(company_shows, few_rows_differ)[0]
    assert (second.products.rung, second.products.min_rows) == (Rung.PLAIN, 6)
    assert second.why == (
        "the library keeps rows independent from 6 on; by A a row of 200 by 24 x 64 weights depends on its company"
    )


@pytest.mark.parametrize(
    ("vendor", "flags", "shape", "first"),
    [
        ("GenuineIntel", {"avx2", "avx512f"}, (512, 512), "the library"),
        ("AuthenticAMD", {"avx2", "avx512f"}, (512, 512), "oneDNN"),
        ("AuthenticAMD", {"avx2", "avx512f"}, (128, 384), "the library"),
        ("AuthenticAMD", {"avx2"}, (512, 512), "the library"),
        ("", set(), (512, 512), "the library"),
    ],
)
def test_onednn_is_quicker_where_mkl_leaves_out_avx512_and_weights_are_not_tiny(
    vendor: str, flags: set[str], shape: tuple[int, int], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert libraries_for([shape], torch.float32, vendor, flags)[0].name == first
    assert [one.name for one in libraries_for([shape], torch.bfloat16, vendor, flags)] == ["the library"]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert libraries_for([shape], torch.float32, vendor, flags)[0].name == "the library"


def test_rows_that_are_padded_to_are_bounded() -> None:
    def needs_many(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return exact(rows, weight) * (OFF if len(rows) <= MOST_PADDED else 1.0)

    assert found(needs_many)[0].products.rung is Rung.TILES


def test_the_way_that_was_asked_for_is_the_only_one() -> None:
    ladder = Ladder(SHAPES, torch.float32, torch.device("cpu"), [PlainProducts(7)])
    assert ladder.products is not None
    assert (ladder.products.min_rows, ladder.arithmetic.rung) == (7, "plain")
    with pytest.raises(
        BatchDependenceError, match=r"it differs, also by the last way .* rollout\.deterministic = false"
    ):
        ladder.descend(BatchDependenceError("it differs"), required=True)
    assert (ladder.holds, ladder.arithmetic.rung) == (False, "none")


def test_what_the_environment_makes_of_a_processor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = settings({"MKL_CBWR": "AUTO,STRICT", "OMP_NUM_THREADS": "1"})
    assert (plain, settings({"MKL_CBWR": "COMPATIBLE"})) == ([], ["MKL_CBWR=COMPATIBLE"])
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    ladder = Ladder(SHAPES, torch.float32, torch.device("cpu"))
    assert ladder.arithmetic.processor.endswith(", NUMBA_DISABLE_JIT=1")


def test_the_library_of_this_machine_has_a_way_for_each_shape_of_a_model() -> None:
    ladder = Ladder([(64, 192), (64, 512), (256, 64), (896, 320)], torch.float32, torch.device("cpu"))
    assert ladder.holds
    assert ladder.arithmetic.processor
