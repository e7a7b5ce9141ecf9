"""One kernel between the projection and the attention: norm and rotation of queries and keys, and the store of keys and
values into their pages.

Guaranteed: a token's numbers depend on that token alone. Arithmetic is in float32, rounded once when it is stored. A
token at a negative position is nobody's: nothing of it is stored.

Shapes: T tokens, H query heads, K key-value heads, D head_dim, G = H + 2 K heads of a projection.
"""

import torch
import triton
import triton.language as tl

from streamrl.engines.torch.cuda.pages import PAGE
from streamrl.engines.torch.families import ModelShape


@triton.jit
def _rotate_and_store(  # type: ignore[no-untyped-def]
    heads_ptr,
    norm_ptr,
    cos_ptr,
    sin_ptr,
    cache_ptr,
    table_ptr,
    row_ptr,
    position_ptr,
    eps,
    table_width,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    VALUES: tl.constexpr,
    HALF: tl.constexpr,
    WHOLE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    position = tl.load(position_ptr + token)
    if position >= 0:
        page = tl.load(table_ptr + tl.load(row_ptr + token) * table_width + position // PAGE).to(tl.int64)
        place = page * (2 * K * PAGE * D) + (position % PAGE) * D
        head, low = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
        inside = (head < H + K) & (low < D // 2)
        at = token * (H + 2 * K) * D + head * D + low
        first = tl.load(heads_ptr + at, mask=inside, other=0.0)
        second = tl.load(heads_ptr + at + D // 2, mask=inside, other=0.0)
        dtype = first.dtype
        first, second = first.to(tl.float32), second.to(tl.float32)
        if NORM:
            scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / D + eps)[:, None]
            left = tl.load(norm_ptr + head * D + low, mask=inside, other=0.0).to(tl.float32)
            right = tl.load(norm_ptr + head * D + D // 2 + low, mask=inside, other=0.0).to(tl.float32)
            first = ((first * scale).to(dtype).to(tl.float32) * left).to(dtype).to(tl.float32)
            second = ((second * scale).to(dtype).to(tl.float32) * right).to(dtype).to(tl.float32)
        turn = position * D + low
        ok = low < D // 2
        cos_1 = tl.load(cos_ptr + turn, mask=ok, other=0.0).to(tl.float32)
        cos_2 = tl.load(cos_ptr + turn + D // 2, mask=ok, other=0.0).to(tl.float32)
        # The first half of the table is negated already.
        sin_1 = tl.load(sin_ptr + turn, mask=ok, other=0.0).to(tl.float32)
        sin_2 = tl.load(sin_ptr + turn + D // 2, mask=ok, other=0.0).to(tl.float32)
        turned_1 = (first * cos_1 + second * sin_1).to(dtype)
        turned_2 = (second * cos_2 + first * sin_2).to(dtype)
        query = inside & (head < H)
        tl.store(heads_ptr + at, turned_1, mask=query)
        tl.store(heads_ptr + at + D // 2, turned_2, mask=query)
        key = inside & (head >= H)
        into = place + (head - H) * (PAGE * D) + low
        tl.store(cache_ptr + into, turned_1, mask=key)
        tl.store(cache_ptr + into + D // 2, turned_2, mask=key)
        value, whole = tl.arange(0, VALUES)[:, None], tl.arange(0, WHOLE)[None, :]
        of_value = (value < K) & (whole < D)
        loaded = tl.load(heads_ptr + token * (H + 2 * K) * D + (H + K + value) * D + whole, mask=of_value, other=0.0)
        tl.store(cache_ptr + place + (K + value) * (PAGE * D) + whole, loaded, mask=of_value)


def rotate_and_store(
    heads_TGD: torch.Tensor,
    norm_HD: torch.Tensor | None,
    rope: tuple[torch.Tensor, torch.Tensor],
    layer_cache: torch.Tensor,
    table: torch.Tensor,
    rows_T: torch.Tensor,
    positions_T: torch.Tensor,
    shape: ModelShape,
) -> None:
    """Rotate the query heads in place; put keys and values of every token where its row's page table says.

    norm_HD: [H + K, D], or None. rope: cos and sin, [positions, D] each (see `rope_tables`). layer_cache:
    [pages, 2, K, PAGE, D]. table: int32 [rows, pages of a row]. rows_T, positions_T: int64, position -1 for a token
    that is not there.
    """
    heads, kv_heads, dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
    grid = (heads_TGD.shape[0],)
    _rotate_and_store[grid](
        heads_TGD,
        heads_TGD if norm_HD is None else norm_HD,
        *rope,
        layer_cache,
        table,
        rows_T,
        positions_T,
        shape.rms_norm_eps,
        table.shape[1],
        H=heads,
        K=kv_heads,
        D=dim,
        PAGE=PAGE,
        NORM=norm_HD is not None,
        HEADS=triton.next_power_of_2(heads + kv_heads),
        VALUES=triton.next_power_of_2(kv_heads),
        HALF=triton.next_power_of_2(dim // 2),
        WHOLE=triton.next_power_of_2(dim),
    )
