"""Ways to multiply rows: each computes the product, and tiles cover all rows once."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.kernels import NEEDS_KERNELS

from streamrl.engines.torch.eager.own_products import OwnProducts
from streamrl.engines.torch.products import TILE, OneDnnProducts, PlainProducts, RowProducts, TiledProducts, tiles

WAYS: dict[str, RowProducts] = {
    "plain": PlainProducts(),
    "onednn": OneDnnProducts(),
    "tiles": TiledProducts(),
    "large tiles": TiledProducts((64, 32, TILE)),
    "own": OwnProducts(),
}
OWN = pytest.param("own", marks=NEEDS_KERNELS)


@given(rows=st.integers(1, 700), sizes=st.sampled_from([(TILE,), (64, TILE), (256, 64, TILE)]))
def test_tiles_cover_each_row_once_and_only_the_last_goes_beyond(rows: int, sizes: tuple[int, ...]) -> None:
    found = list(tiles(rows, sizes))
    assert [start for start, _ in found] == [sum(size for _, size in found[:place]) for place in range(len(found))]
    assert {size for _, size in found} <= set(sizes)
    beyond = sum(size for _, size in found) - rows
    assert 0 <= beyond < TILE
    assert sorted((size for _, size in found), reverse=True) == [size for _, size in found]


@pytest.mark.parametrize("way", [*(way for way in WAYS if way != "own"), OWN])
@pytest.mark.parametrize("rows", [1, 3, 16, 17, 64, 100, 203])
@pytest.mark.parametrize("transposed", [True, False])
def test_each_way_computes_the_product(way: str, rows: int, transposed: bool) -> None:
    random = torch.Generator().manual_seed(rows)
    x, inner = torch.randn(rows, 24, generator=random), torch.randn(rows, 40, generator=random)
    weight, bias = torch.randn(40, 24, generator=random), torch.randn(24, generator=random)
    if transposed:
        weight = weight.t().contiguous().t()
    exact = inner.double() @ weight.double()
    products = WAYS[way]
    assert torch.allclose(products.linear(inner, weight, None).double(), exact, atol=1e-4)
    assert torch.allclose(products.linear(inner, weight, bias).double(), exact + bias, atol=1e-4)
    assert torch.allclose(products.add_linear(x, inner, weight, None).double(), exact + x, atol=1e-4)
    assert torch.allclose(products.add_linear(x, inner, weight, bias).double(), exact + x + bias, atol=1e-4)


@pytest.mark.parametrize("way", [*(way for way in WAYS if way != "own"), OWN])
@pytest.mark.parametrize("rows", [1, 4, 17, 100])
@pytest.mark.parametrize("biased", [True, False])
def test_what_goes_into_given_memory_has_the_same_bits(way: str, rows: int, biased: bool) -> None:
    random = torch.Generator().manual_seed(rows)
    x, inner = torch.randn(rows, 24, generator=random), torch.randn(rows, 40, generator=random)
    weight = torch.randn(24, 40, generator=random).t()
    bias = torch.randn(24, generator=random) if biased else None
    products, room = WAYS[way], torch.full((rows, 24), torch.nan)
    product, total = products.linear(inner, weight, bias), products.add_linear(x, inner, weight, bias)
    assert products.linear(inner, weight, bias, out=room) is room
    assert torch.equal(room, product)
    assert products.add_linear(x, inner, weight, bias, out=x) is x
    assert torch.equal(x, total)


@pytest.mark.parametrize("way", ["tiles", OWN])
@pytest.mark.parametrize("inner", [20, 64, 172, 896])
def test_a_row_keeps_its_bits_in_any_company_and_at_any_place(way: str, inner: int) -> None:
    random = torch.Generator().manual_seed(inner)
    weight, rows = torch.randn(320, inner, generator=random).t(), torch.randn(150, inner, generator=random)
    products = WAYS[way]
    whole = products.linear(rows, weight, None)
    for count in range(1, 150):
        assert torch.equal(products.linear(rows[:count], weight, None), whole[:count])
        order = torch.randperm(150, generator=random)[:count]
        assert torch.equal(products.linear(rows[order], weight, None), whole[order])
