"""Which attention kernel computes, and what it is given. The kernels themselves need a GPU: tests/gpu."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from streamrl.learner.attention import varlen
from streamrl.learner.attention.packed import attend_at_once, packed_attention
from streamrl.learner.batch.attention_layout import lay_out

BOTH = ("flash_attn", "flash_attn_interface")

FLASH = '''
"""Stands in for flash-attn, which needs a GPU: its documented signature, by a loop over the segments."""
import torch

def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, softmax_scale=None, causal=False
):
    assert causal and cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert (cu_seqlens_q.diff().max(), cu_seqlens_k.diff().max()) == (max_seqlen_q, max_seqlen_k)
    found = []
    for (a, b), (c, d) in zip(*(list(zip(x.tolist(), x.tolist()[1:])) for x in (cu_seqlens_q, cu_seqlens_k))):
        keys, values = (x[c:d].repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[a:b], keys) * (softmax_scale or q.shape[-1] ** -0.5)
        seen = torch.ones(b - a, d - c, dtype=torch.bool).tril(d - c - b + a)
        found.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), values))
    return RETURNED
'''


@pytest.fixture(autouse=True)
def look_again() -> Iterator[None]:
    """What is installed is looked up once in a process."""
    varlen.installed_kernels.cache_clear()
    yield
    varlen.installed_kernels.cache_clear()


@pytest.mark.parametrize(
    ("capability", "head_dim", "dtype", "installed", "expected"),
    [
        # Hopper.
        ((9, 0), 128, torch.bfloat16, BOTH, "flash_attn_interface"),
        ((9, 0), 256, torch.float16, BOTH, "flash_attn_interface"),
        ((9, 0), 128, torch.float16, ("flash_attn",), "flash_attn"),
        ((9, 0), 128, torch.bfloat16, (), "torch"),
        ((9, 0), 128, torch.float32, BOTH, "segments"),
        # flash-attn 3 can be imported and computes nothing: Ampere, Ada, Blackwell.
        ((8, 0), 128, torch.bfloat16, BOTH, "flash_attn"),
        ((8, 9), 64, torch.bfloat16, ("flash_attn_interface",), "torch"),
        ((10, 0), 128, torch.bfloat16, BOTH, "flash_attn"),
        ((12, 0), 128, torch.bfloat16, ("flash_attn_interface",), "torch"),
        # Too old for all: Turing, Volta.
        ((7, 5), 128, torch.float16, BOTH, "segments"),
        ((7, 0), 128, torch.float16, (), "segments"),
        # Heads that are too wide for all, and ones that flash-attn 2 alone pads.
        ((9, 0), 264, torch.bfloat16, BOTH, "segments"),
        ((9, 0), 512, torch.bfloat16, (), "segments"),
        ((9, 0), 36, torch.bfloat16, BOTH, "flash_attn"),
        ((9, 0), 36, torch.bfloat16, ("flash_attn_interface",), "segments"),
        (None, 128, torch.bfloat16, BOTH, "segments"),
    ],
)
def test_each_kernel_computes_where_it_can_the_best_first_and_the_rest_segment_by_segment(
    capability: tuple[int, int] | None, head_dim: int, dtype: torch.dtype, installed: tuple[str, ...], expected: str
) -> None:
    assert varlen.kernel_for(capability, head_dim, dtype, lambda: installed) == expected


def test_a_cpu_has_no_capability_and_is_asked_of_no_package() -> None:
    assert varlen.capability_of(torch.device("cpu")) is None
    assert varlen.kernel_for(None, 64, torch.bfloat16, pytest.fail) == "segments"
    assert varlen.kernel_for((7, 5), 64, torch.float16, pytest.fail) == "segments"


@pytest.mark.parametrize("returned", ["torch.cat(found)", "(torch.cat(found), None)"])
@pytest.mark.parametrize("name", BOTH)
def test_an_installed_flash_attn_is_found_and_given_what_attention_by_segments_is_given(
    name: str, returned: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(FLASH.replace("RETURNED", returned))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert varlen.installed_kernels() == (name,)
    # A prompt of four tokens, two answers that share it, and a row alone.
    layout = lay_out(np.array([4, 3, 1, 6]), np.array([0, 4, 4, 0]), np.array([-1, 0, 0, -1]))
    print("seed 2")
    generator = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(1, heads, 14, 8, generator=generator) for heads in (4, 2, 2))
    scale = 1.0 / math.sqrt(7.0)
    expected, _ = packed_attention(torch.nn.Module(), query, key, value, None, scale, layout)
    parts = (x[0].transpose(0, 1) for x in (query, key, value))
    got = attend_at_once(varlen.kernel(name), *parts, layout, scale)
    torch.testing.assert_close(got, expected[0], rtol=1e-5, atol=1e-5)
    sys.modules.pop(name)


def test_a_flash_attn_that_cannot_be_imported_is_warned_of_and_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flash_attn.py").write_text("raise ImportError('undefined symbol: _ZN3c105Error')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="flash_attn is installed and cannot be imported.*undefined symbol") as told:
        assert varlen.installed_kernels() == varlen.installed_kernels() == ()
    assert len(told) == 1


def test_a_cpu_without_flash_attn_has_none() -> None:
    assert varlen.installed_kernels() == ()
