"""Deltas: what is applied is the newer version to the bit, and they are as small as they are worth."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.kernels import NEEDS_KERNELS
from support.weights.delta_versions import ANY_SHARE, RUN, Tensor, build_version, delta_of, flat, holds, joined, pair

from streamrl.errors import DataError
from streamrl.types import Version
from streamrl.weights.delta.delta import ENCODED_AT_ONCE, apply_delta, encode_delta
from streamrl.weights.delta.format import read_header
from streamrl.weights.delta.kernels import BLOCK, PIECE
from streamrl.weights.manifest import ITEM_BYTES

pytestmark = NEEDS_KERNELS

DTYPES = tuple(ITEM_BYTES)
LENGTHS = (0, 1, 2, 3, 31, 32, 33, 8 * BLOCK + 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 777)


@st.composite
def changed_tensor(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """A tensor and what became of it: none, some or all elements, by small steps or any bits at all."""
    dtype = draw(st.sampled_from(DTYPES))
    length = draw(st.sampled_from(LENGTHS) | st.integers(0, 200))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.0005, 0.01, 0.3, 1.0]))
    reach = draw(st.sampled_from([1, 7, 2**15, 2 ** (8 * ITEM_BYTES[dtype]) - 1]))
    old = random.integers(0, 2 ** (8 * ITEM_BYTES[dtype]), length)
    new = np.where(random.random(length) < share, old + random.integers(-reach, reach, length, endpoint=True), old)
    shape = draw(st.sampled_from([(length,), (1, length), (length, 1, 1), *([()] if length == 1 else [])]))
    (_, _, before), (_, _, after) = flat(dtype, old), flat(dtype, new % 2 ** (8 * ITEM_BYTES[dtype]))
    return (dtype, shape, before), (dtype, shape, after)


@settings(max_examples=150)
@given(st.lists(changed_tensor(), min_size=1, max_size=5), st.integers(0, 9), st.booleans())
def test_what_is_applied_is_the_newer_version_to_the_bit(tensors, gap, in_place):
    last = {"last": flat("float32", [3])}
    old = build_version(1, {f"t{i}": before for i, (before, _) in enumerate(tensors)} | last, gap=gap)
    new = build_version(2, {f"t{i}": after for i, (_, after) in enumerate(tensors)} | last, gap=gap)
    target = old[1].copy() if in_place else np.full(new[0].total_bytes, 0xEE, np.uint8)
    apply_delta(delta_of(old, new), old[0], new[0], target, base=None if in_place else old[1])
    assert target.tobytes() == new[1].tobytes()


SPECIAL = (0, 0x80000000, 0x7F800000, 0x7FC00000, 0x7FC00001, 0xFFC00000, 0xFF800001, 0xFFFFFFFF, 0x7FFFFFFF, 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_zeros_of_either_sign_and_any_nan_are_bits_like_others(dtype):
    values = [value >> (32 - 8 * ITEM_BYTES[dtype]) for value in SPECIAL]
    pairs = [(one, other) for one in values for other in values]
    old = build_version(1, {"w": flat(dtype, [one for one, _ in pairs])})
    new = build_version(2, {"w": flat(dtype, [other for _, other in pairs])})
    target = np.zeros(new[0].total_bytes, np.uint8)
    apply_delta(delta_of(old, new), old[0], new[0], target, base=old[1])
    assert target.tobytes() == new[1].tobytes()


def test_tensors_come_as_nothing_as_changes_or_in_full_whichever_is_least():
    old, new = pair()
    header, _ = read_header(memoryview(delta_of(old, new)))
    assert {record.name: record.coding for record in header.tensors} == {
        "a": "changed",
        "b": "changed",
        "c": "changed",
        "same": "same",
        "grows": "full",
    }
    assert (header.run_id, header.base, header.version) == (RUN, Version(0, 4), Version(0, 5))


def test_a_large_tensor_with_other_bits_comes_in_full_and_the_next_one_as_changes():
    """Its changes are more than all of it before the last of them are looked at."""
    random = np.random.default_rng(8)
    size = 11 * ENCODED_AT_ONCE
    old, new = (
        build_version(step, {"w": flat("float16", random.integers(0, 2**16, size)), "v": flat("float32", [step] * 50)})
        for step in (1, 2)
    )
    delta = delta_of(old, new)
    assert [record.coding for record in read_header(memoryview(delta))[0].tensors] == ["full", "changed"]
    target = old[1].copy()
    apply_delta(delta, old[0], new[0], target)
    assert target.tobytes() == new[1].tobytes()


def test_tensors_that_appear_vanish_move_or_change_their_form_come_out_right():
    moved = flat("float32", np.arange(1000))
    old = build_version(1, {"gone": flat("float32", [1]), "w": moved, "cast": flat("float16", [1, 2])})
    new = build_version(2, {"cast": flat("bfloat16", [1, 2]), "new": flat("float32", [7, 8]), "w": moved})
    delta = delta_of(old, new)
    target = np.zeros(new[0].total_bytes, np.uint8)
    apply_delta(delta, old[0], new[0], target, base=old[1])
    assert holds(new[0], target)
    in_place = np.zeros(new[0].total_bytes, np.uint8)
    in_place[: len(old[1])] = old[1][: len(in_place)]
    before = in_place.copy()
    with pytest.raises(DataError, match=r"0\.1 -> 0\.2: tensor 'w' moves from byte 4 to 12, .*`base`"):
        apply_delta(delta, old[0], new[0], in_place)
    assert (in_place == before).all()


def test_in_place_a_version_may_grow_behind_what_stays():
    stays = flat("float32", np.arange(100))
    old = build_version(1, {"w": stays})
    new = build_version(2, {"w": flat("float32", np.arange(100) ^ 1), "new": stays})
    target = np.zeros(new[0].total_bytes, np.uint8)
    target[: len(old[1])] = old[1]
    apply_delta(delta_of(old, new), old[0], new[0], target)
    assert holds(new[0], target)


def test_an_unchanged_tensor_is_not_looked_at():
    old = build_version(1, {"frozen": flat("float32", np.arange(1000)), "w": flat("float32", [1])})
    new = build_version(2, {"frozen": flat("float32", np.arange(1000)), "w": flat("float32", [2])})
    never = np.concatenate([np.zeros(4000, np.uint8), old[1][4000:]])
    delta = joined(encode_delta(old[0], new[0], never, new[1], max_share=ANY_SHARE))
    target = old[1].copy()
    apply_delta(delta, old[0], new[0], target)
    assert holds(new[0], target)


@pytest.mark.parametrize("start", [0, 1, 2, 3, 4, 6])
def test_tensors_may_lie_at_any_byte(start):
    values = np.arange(3000)
    tensors = {"a": flat("float32", values), "b": flat("bfloat16", values)}
    others = {"a": flat("float32", values ^ (values % 7 == 0)), "b": flat("bfloat16", values ^ (values % 5 == 0))}
    old, new = build_version(1, tensors, start=start, gap=1), build_version(2, others, start=start, gap=1)
    target = old[1].copy()
    apply_delta(delta_of(old, new), old[0], new[0], target)
    assert target.tobytes() == new[1].tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_percent_of_random_bits_takes_less_than_two_percent_of_the_bytes(dtype):
    random = np.random.default_rng(5)
    size, top = 300_000, 2 ** (8 * ITEM_BYTES[dtype])
    values = random.integers(0, top, size)
    others = np.where(random.random(size) < 0.01, random.integers(0, top, size), values)
    old, new = build_version(1, {"w": flat(dtype, values)}), build_version(2, {"w": flat(dtype, others)})
    assert len(delta_of(old, new)) < 0.02 * new[0].total_bytes


def test_steps_of_an_optimiser_take_less_than_their_bits():
    """bfloat16 weights out of float32 ones, at a learning rate of 1e-6: 2.8 % of them change, mostly by one unit."""
    random = np.random.default_rng(6)
    weights = (0.02 * random.standard_normal(300_000)).astype(np.float32)
    moved = weights + (1e-6 * np.clip(random.standard_normal(len(weights)), -1, 1)).astype(np.float32)
    old, new = (build_version(i, {"w": flat("bfloat16", _rounded(w))}) for i, w in ((1, weights), (2, moved)))
    num_changed = int((_rounded(weights) != _rounded(moved)).sum())
    assert 0.02 < num_changed / len(weights) < 0.04
    assert len(delta_of(old, new)) * 8 < 10 * num_changed


def _rounded(weights: np.ndarray) -> np.ndarray:
    bits = weights.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def test_a_delta_over_its_share_is_not_made_and_one_under_it_is():
    random = np.random.default_rng(7)
    values = random.integers(0, 2**32, 100_000)
    old = build_version(1, {"w": flat("float32", values), "v": flat("float32", values)})
    new = build_version(2, {"w": flat("float32", random.integers(0, 2**32, 100_000)), "v": flat("float32", values ^ 1)})
    assert encode_delta(old[0], new[0], old[1], new[1]) is None
    size = len(joined(encode_delta(old[0], new[0], old[1], new[1], max_share=0.6)))
    assert 400_000 < size < 0.6 * new[0].total_bytes
    assert encode_delta(old[0], new[0], old[1], new[1], max_share=size / new[0].total_bytes) is not None
    assert encode_delta(old[0], new[0], old[1], new[1], max_share=(size - 1) / new[0].total_bytes) is None


def test_a_delta_does_not_depend_on_the_number_of_threads():
    old, new = pair()
    one, many = (
        joined(encode_delta(old[0], new[0], old[1], new[1], max_share=ANY_SHARE, threads=threads)) for threads in (1, 5)
    )
    assert one == many


@pytest.mark.parametrize("change", [{"step": 6}, {"step": 4}, {"incarnation": 1}, {"run_id": "run-2"}])
def test_only_versions_that_follow_each_other_have_a_delta(change):
    old = build_version(4, {"w": flat("float32", [1])})
    new = build_version(**{"step": 5, "tensors": {"w": flat("float32", [2])}, **change})
    with pytest.raises(DataError, match=r"weight delta 0\.4 -> .*publish in full"):
        encode_delta(old[0], new[0], old[1], new[1])


def test_bytes_that_are_not_as_many_as_the_manifest_says_are_refused():
    old, new = pair()
    delta = delta_of(old, new)
    with pytest.raises(DataError, match=r"version 0\.4 has"):
        encode_delta(old[0], new[0], old[1][:-1], new[1])
    with pytest.raises(DataError, match=r"version 0\.5 has"):
        encode_delta(old[0], new[0], old[1], new[1][:-1])
    with pytest.raises(DataError, match="the target has"):
        apply_delta(delta, old[0], new[0], new[1][1:].copy(), base=old[1])
    with pytest.raises(DataError, match=r"version 0\.4 has"):
        apply_delta(delta, old[0], new[0], new[1].copy(), base=old[1][1:])


@pytest.mark.parametrize("in_place", [True, False])
def test_a_base_that_is_not_the_older_version_is_found_and_the_tensor_named(in_place):
    old, new = pair()
    new = build_version(5, {entry.name: _tensor(new, entry) for entry in new[0].tensors if entry.name != "grows"})
    old = build_version(4, {entry.name: _tensor(old, entry) for entry in old[0].tensors if entry.name != "grows"})
    delta, wrong = delta_of(old, new), old[1].copy()
    entry = new[0].tensors[-1]
    assert entry.name == "same"
    wrong[entry.offset] ^= 1
    kept, target = wrong.copy(), wrong.copy()
    with pytest.raises(DataError, match=r"0\.4 -> 0\.5: tensor 'same': .*throw it away"):
        apply_delta(delta, old[0], new[0], target, base=None if in_place else wrong)
    assert (wrong == kept).all()


def _tensor(version, entry) -> Tensor:
    return flat(entry.dtype, version[1][entry.offset : entry.offset + entry.nbytes].view(f"u{ITEM_BYTES[entry.dtype]}"))


def test_memory_is_taken_for_the_delta_and_a_few_pieces_only():
    values = np.arange(2**24)
    old = build_version(1, {"w": flat("float32", values)})
    new = build_version(2, {"w": flat("float32", values ^ (values % 500 == 0))})
    target = np.zeros(new[0].total_bytes, np.uint8)
    apply_delta(delta_of(old, new), old[0], new[0], target, base=old[1])
    tracemalloc.start()
    buffers = encode_delta(old[0], new[0], old[1], new[1])
    _, encoding = tracemalloc.get_traced_memory()
    delta = joined(buffers)
    tracemalloc.reset_peak()
    held, _ = tracemalloc.get_traced_memory()
    apply_delta(delta, old[0], new[0], target, base=old[1])
    _, applying = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert encoding < len(delta) + 32 * 2**20
    assert applying - held < 2**20
