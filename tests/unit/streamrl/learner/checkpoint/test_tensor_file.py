"""The file of a checkpoint's tensors: what any safetensors reader finds in it is what was given."""

import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from streamrl.errors import DataError
from streamrl.learner.checkpoint.tensor_file import NAMES, pieces

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 50
    return (drawn > 0) if dtype is torch.bool else drawn.abs().to(dtype)


@given(
    made=st.dictionaries(
        st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__"),
        st.tuples(SHAPES, st.sampled_from(sorted(NAMES, key=str)), st.integers(0, 2**31)),
        min_size=1,
        max_size=8,
    )
)
def test_a_reader_finds_every_tensor_with_its_name_shape_and_format(
    made: dict[str, tuple[tuple[int, ...], torch.dtype, int]],
) -> None:
    tensors = {name: filled(*how) for name, how in made.items()}
    read = load(b"".join(pieces(tensors)))
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor), name


def test_every_tensor_begins_at_a_multiple_of_its_own_width() -> None:
    mixed = {"a": torch.ones(3, dtype=torch.bfloat16), "b": torch.ones(1, dtype=torch.uint8), "c": torch.ones(2)}
    head, *_ = pieces(mixed)
    (length,) = struct.unpack("<Q", head[:8])
    assert len(head) == 8 + length
    assert len(head) % 8 == 0
    entries = json.loads(bytes(head[8:]))
    assert {name: entry["data_offsets"][0] for name, entry in entries.items()} == {"c": 0, "a": 8, "b": 14}


def test_a_format_that_has_no_name_is_refused_with_the_tensor() -> None:
    with pytest.raises(DataError, match=r"tensor odd: no checkpoint holds torch\.complex64; it holds .*float32"):
        pieces({"odd": torch.ones(1, dtype=torch.complex64)})
