"""Attention over the paged cache: of one token for each row that decodes, and of the tokens of prompts.

Guaranteed: a row's result depends on its own query, keys and values alone. Keys are read up to the row's own length, in
blocks at fixed places, so the order of every sum is fixed: no mask, no padding, no order of rows. A row's keys are cut
into stretches of `split_keys` at fixed places (Dao et al., "Flash-Decoding", 2023), and their parts are added in order.

Shapes: T tokens, B rows, H query heads, K key-value heads, R = H / K, D head_dim, S stretches.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from streamrl.engines.torch.cuda.pages import PAGE
from streamrl.engines.torch.families import ModelShape

KEYS = 64
"""Keys of one block."""
LEAST_SPLIT, MOST_SPLITS = 256, 16
PROMPT_ROWS = {torch.bfloat16: 64, torch.float16: 64, torch.float32: 16}
"""Query rows (tokens x heads of a group) of one program over prompts: what registers hold."""
LEAST_DOT = 16
"""Rows and columns that a product on tensor cores has at least."""
LOG2_E = math.log2(math.e)


@triton.jit
def _decode(  # type: ignore[no-untyped-def]
    heads_ptr,
    cache_ptr,
    table_ptr,
    position_ptr,
    out_ptr,
    part_ptr,
    log_ptr,
    scale,
    table_width,
    split_keys,
    splits,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    keys = tl.load(position_ptr + row) + 1
    first = split * split_keys
    if first < keys:
        last = tl.minimum(first + split_keys, keys)
        turn, wide = tl.arange(0, RP), tl.arange(0, DP)
        of_query = (turn < R)[:, None] & (wide < D)[None, :]
        at = (head * R + turn)[:, None] * D + wide[None, :]
        query = tl.load(heads_ptr + row * (H + 2 * K) * D + at, mask=of_query, other=0.0)
        greatest = tl.full((RP,), float("-inf"), tl.float32)
        total = tl.zeros((RP,), tl.float32)
        sums = tl.zeros((RP, DP), tl.float32)
        for start in range(first, last, KEYS):
            number = start + tl.arange(0, KEYS)
            inside = number < last
            page = tl.load(table_ptr + row * table_width + number // PAGE, mask=inside, other=0).to(tl.int64)
            place = page * (2 * K * PAGE * D) + head * (PAGE * D) + (number % PAGE) * D
            loaded = inside[:, None] & (wide < D)[None, :]
            key = tl.load(cache_ptr + place[:, None] + wide[None, :], mask=loaded, other=0.0)
            value = tl.load(cache_ptr + K * PAGE * D + place[:, None] + wide[None, :], mask=loaded, other=0.0)
            scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
            scores = tl.where(inside[None, :], scores, float("-inf"))
            higher = tl.maximum(greatest, tl.max(scores, 1))
            shares = tl.exp2(scores - higher[:, None])
            shrink = tl.exp2(greatest - higher)
            total = total * shrink + tl.sum(shares, 1)
            sums = sums * shrink[:, None] + tl.dot(shares.to(value.dtype), value, input_precision=PRECISION)
            greatest = higher
        if keys <= split_keys:
            found = (sums / total[:, None]).to(out_ptr.dtype.element_ty)
            tl.store(out_ptr + row * H * D + at, found, mask=of_query)
        else:
            part = ((row * splits + split) * H + head * R + turn).to(tl.int64)
            tl.store(part_ptr + part[:, None] * D + wide[None, :], sums / total[:, None], mask=of_query)
            tl.store(log_ptr + part, greatest + tl.log2(total), mask=turn < R)


@triton.jit
def _add_splits(  # type: ignore[no-untyped-def]
    position_ptr,
    out_ptr,
    part_ptr,
    log_ptr,
    split_keys,
    splits,
    H: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    HP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    keys = tl.load(position_ptr + row) + 1
    if keys > split_keys:
        head, wide = tl.arange(0, HP), tl.arange(0, DP)
        inside = (head < H)[:, None] & (wide < D)[None, :]
        greatest = tl.full((HP,), float("-inf"), tl.float32)
        total = tl.zeros((HP,), tl.float32)
        sums = tl.zeros((HP, DP), tl.float32)
        for split in range(0, tl.cdiv(keys, split_keys)):
            part = (row * splits + split) * H + head
            found = tl.load(part_ptr + part[:, None] * D + wide[None, :], mask=inside, other=0.0)
            log_total = tl.load(log_ptr + part, mask=head < H, other=0.0)
            higher = tl.maximum(greatest, log_total)
            shrink, share = tl.exp2(greatest - higher), tl.exp2(log_total - higher)
            total = total * shrink + share
            sums = sums * shrink[:, None] + found * share[:, None]
            greatest = higher
        out = (sums / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row * H * D + head[:, None] * D + wide[None, :], out, mask=inside)


@triton.jit
def _prompts(  # type: ignore[no-untyped-def]
    heads_ptr,
    cache_ptr,
    table_ptr,
    block_ptr,
    out_ptr,
    scale,
    table_width,
    H: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    R: tl.constexpr,
    RP: tl.constexpr,
    DP: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    TOKENS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block, head = tl.program_id(0), tl.program_id(1)
    count = tl.load(block_ptr + block * 4 + 3)
    if count > 0:
        row = tl.load(block_ptr + block * 4)
        token = tl.load(block_ptr + block * 4 + 1)
        position = tl.load(block_ptr + block * 4 + 2)
        lane, wide = tl.arange(0, TOKENS * RP), tl.arange(0, DP)
        offset, turn = lane // RP, lane % RP
        of_query = ((offset < count) & (turn < R))[:, None] & (wide < D)[None, :]
        query_head = head * R + turn
        at = (token + offset)[:, None] * ((H + 2 * K) * D) + query_head[:, None] * D + wide[None, :]
        query = tl.load(heads_ptr + at, mask=of_query, other=0.0)
        greatest = tl.full((TOKENS * RP,), float("-inf"), tl.float32)
        total = tl.zeros((TOKENS * RP,), tl.float32)
        sums = tl.zeros((TOKENS * RP, DP), tl.float32)
        last = position + count
        for start in range(0, last, KEYS):
            number = start + tl.arange(0, KEYS)
            inside = number < last
            page = tl.load(table_ptr + row * table_width + number // PAGE, mask=inside, other=0).to(tl.int64)
            place = page * (2 * K * PAGE * D) + head * (PAGE * D) + (number % PAGE) * D
            loaded = inside[:, None] & (wide < D)[None, :]
            key = tl.load(cache_ptr + place[:, None] + wide[None, :], mask=loaded, other=0.0)
            value = tl.load(cache_ptr + K * PAGE * D + place[:, None] + wide[None, :], mask=loaded, other=0.0)
            scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * scale
            seen = (number[None, :] <= (position + offset)[:, None]) & inside[None, :]
            scores = tl.where(seen, scores, float("-inf"))
            higher = tl.maximum(greatest, tl.max(scores, 1))
            # A lane beyond the last token sees keys too: the first block holds key 0, which every position sees.
            shares = tl.exp2(scores - higher[:, None])
            shrink = tl.exp2(greatest - higher)
            total = total * shrink + tl.sum(shares, 1)
            sums = sums * shrink[:, None] + tl.dot(shares.to(value.dtype), value, input_precision=PRECISION)
            greatest = higher
        found = (sums / total[:, None]).to(out_ptr.dtype.element_ty)
        into = (token + offset)[:, None] * (H * D) + query_head[:, None] * D + wide[None, :]
        tl.store(out_ptr + into, found, mask=of_query)


class Splits(NamedTuple):
    """How the keys of a row are cut: `keys` in each of at most `count` stretches."""

    keys: int
    count: int


def splits_of(max_length: int) -> Splits:
    """The same for every batch of an engine, so that a row's sum is too."""
    wanted = min(MOST_SPLITS, -(-max_length // LEAST_SPLIT))
    keys = -(-max_length // (wanted * KEYS)) * KEYS
    return Splits(keys, -(-max_length // keys))


def prompt_tokens(shape: ModelShape, dtype: torch.dtype) -> int:
    """Tokens of one program of `PagedAttention.prompts`: a power of two."""
    repeat = triton.next_power_of_2(shape.num_heads // shape.num_kv_heads)
    return max(1, PROMPT_ROWS[dtype] // repeat)


class PagedAttention:
    """Attention of one model over pages. dtype: of queries and cache."""

    def __init__(self, shape: ModelShape, splits: Splits, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = shape
        self._splits = splits
        heads, dim = shape.num_heads, shape.head_dim
        parts = (rows, splits.count, heads) if splits.count > 1 else (1, 1, heads)
        self._parts = torch.empty(*parts, dim, dtype=torch.float32, device=device)
        self._logs = torch.empty(*parts, dtype=torch.float32, device=device)
        repeat = heads // shape.num_kv_heads
        self._sizes = {
            "H": heads,
            "K": shape.num_kv_heads,
            "D": dim,
            "R": repeat,
            "DP": max(LEAST_DOT, triton.next_power_of_2(dim)),
            "PAGE": PAGE,
            "KEYS": KEYS,
            "PRECISION": "ieee" if dtype is torch.float32 else "tf32",
        }
        self._scale = dim**-0.5 * LOG2_E
        self.prompt_tokens = prompt_tokens(shape, dtype)

    def decode(
        self, heads_BGD: torch.Tensor, layer_cache: torch.Tensor, table: torch.Tensor, positions_B: torch.Tensor
    ) -> torch.Tensor:
        """Attention of one token for each row to keys 0..position, [B, H * D]; undefined for position -1.

        heads_BGD: [B, H + 2 K, D], of which the queries are read. The rest as in `rotary.rotate_and_store`.
        """
        shape, (split_keys, splits) = self._shape, self._splits
        rows = heads_BGD.shape[0]
        out = heads_BGD.new_empty(rows, shape.num_heads * shape.head_dim)
        _decode[(rows, shape.num_kv_heads, splits)](
            heads_BGD,
            layer_cache,
            table,
            positions_B,
            out,
            self._parts,
            self._logs,
            self._scale,
            table.shape[1],
            split_keys,
            splits,
            **self._sizes,
            RP=max(LEAST_DOT, triton.next_power_of_2(self._sizes["R"])),
            num_warps=4,
            num_stages=2,
        )
        if splits > 1:
            heads = triton.next_power_of_2(shape.num_heads)
            wide = self._sizes["DP"]
            _add_splits[(rows,)](
                positions_B,
                out,
                self._parts,
                self._logs,
                split_keys,
                splits,
                H=shape.num_heads,
                D=shape.head_dim,
                DP=wide,
                HP=heads,
            )
        return out

    def prompts(
        self, heads_TGD: torch.Tensor, layer_cache: torch.Tensor, table: torch.Tensor, blocks: torch.Tensor
    ) -> torch.Tensor:
        """Causal attention of packed tokens to the keys of their rows, [T, H * D]; undefined for tokens in no block.

        blocks: int64 [n, 4]: row, first packed token, its position, and number of tokens (0 for none) of each stretch
        of at most `prompt_tokens` tokens. Their keys are in the cache already.
        """
        shape = self._shape
        out = heads_TGD.new_empty(heads_TGD.shape[0], shape.num_heads * shape.head_dim)
        _prompts[(blocks.shape[0], shape.num_kv_heads)](
            heads_TGD,
            layer_cache,
            table,
            blocks,
            out,
            self._scale,
            table.shape[1],
            **self._sizes,
            RP=triton.next_power_of_2(self._sizes["R"]),
            TOKENS=self.prompt_tokens,
            num_warps=4,
            num_stages=2,
        )
        return out
