"""The compiled kernels against plain float64 arithmetic, and numbers that are not finite."""

import os
import subprocess
import sys
from pathlib import Path

import kernel_numbers
import numpy as np
import pytest
from numba import njit

from streamrl.engines.torch.eager import kernels
from streamrl.engines.torch.eager.lanes import LANES, dot
from streamrl.system.kernel_cache import compiles_kernels

pytestmark = pytest.mark.skipif(not compiles_kernels(), reason="NUMBA_DISABLE_JIT is set: no kernel runs")


def normal(*size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def attend(heads, keys, values, *, slots, last) -> np.ndarray:
    out = np.empty((len(slots), heads.shape[1] - 2 * keys.shape[1], heads.shape[2]), dtype=np.float32)
    scratch, bits = np.empty((2, keys.shape[2]), dtype=np.float32), np.empty(keys.shape[2], dtype=np.int32)
    kernels.attend(heads, keys, values, np.array(slots), np.array(last), scratch, bits, out)
    return out


def draw(scores, *, uniform=None, greedy=False) -> tuple[np.ndarray, np.ndarray]:
    scores = np.asarray(scores, dtype=np.float32)
    number, vocab = scores.shape
    uniform = np.zeros(number) if uniform is None else np.asarray(uniform)
    tokens, logprobs = np.empty(number, dtype=np.int64), np.empty(number, dtype=np.float32)
    weights, bits = np.empty(vocab, dtype=np.float32), np.empty(vocab, dtype=np.int32)
    flags = np.full(number, greedy)
    kernels.draw(scores, flags, uniform.astype(np.float32), weights, bits, tokens, logprobs)
    return tokens, logprobs


def exponentials(values) -> np.ndarray:
    x = np.asarray(values, dtype=np.float32)
    kernels.exponentials(x, np.empty(len(x), dtype=np.int32))
    return x


@njit
def dotted(x, y):
    return dot(x, y)


def dot_in_order(x: np.ndarray, y: np.ndarray) -> np.float32:
    """Lane by lane, half on half, then the rest, each operation rounded to float32."""
    products = x * y
    whole = len(x) // LANES * LANES
    lanes = np.zeros(LANES, dtype=np.float32)
    for block in products[:whole].reshape(-1, LANES):
        lanes = lanes + block
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    total = lanes[0]
    for product in products[whole:]:
        total = total + product
    return total


@pytest.mark.parametrize("length", [*range(18), 32, 63, 64, 128, 1000])
def test_a_dot_product_is_to_the_bit_the_one_in_its_order(length: int):
    for seed in range(20):
        x, y = normal(length, seed=seed), normal(length, seed=100 + seed)
        assert dotted(x, y) == dot_in_order(x, y), seed


def test_a_dot_product_of_what_it_cannot_walk_is_refused():
    with pytest.raises(Exception, match="C-contiguous float32 vector"):
        dotted(np.ones(8), np.ones(8))
    with pytest.raises(Exception, match="C-contiguous float32 vector"):
        dotted(normal(8, seed=0)[::2], normal(4, seed=1))


@pytest.mark.parametrize("rows", [1, 31, 32, 70])
def test_a_product_of_matrices_is_made_of_dot_products_in_their_order(rows: int):
    x, weight = normal(rows, 37, seed=1), normal(9, 37, seed=2)
    out = np.empty((rows, 9), dtype=np.float32)
    kernels.multiply(x, weight, out)
    assert out.tolist() == [[dot_in_order(row, column) for column in weight] for row in x]


@pytest.mark.long
def test_kernels_of_this_process_one_that_compiles_and_one_that_reads_the_cache_agree_to_the_bit(tmp_path: Path):
    """A run and its replay, or the run that goes on after a kill, compile at different times."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, kernel_numbers.__file__]
    seen = [
        dict(line.split() for line in subprocess.check_output(command, env=environment, text=True).splitlines())
        for _ in ("compiled", "read")
    ]
    assert list(tmp_path.rglob("*.nbc")), "the first process left nothing to read"
    assert seen[0].keys() == kernel_numbers.compiled()
    assert seen[0] == seen[1] == kernel_numbers.numbers(7)


def test_exponentials_are_those_of_float64_to_two_units_in_the_last_place():
    x = np.linspace(-87, 0, 100_003, dtype=np.float32)
    wanted = np.exp(x.astype(np.float64))
    assert np.abs(exponentials(x.copy()) / wanted - 1).max() < 2 * np.finfo(np.float32).eps


def test_an_exponential_is_zero_far_below_and_keeps_what_is_not_a_number():
    assert exponentials([-np.inf, -1e30, -88.0, 0.0]).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert np.isnan(exponentials([np.nan, -1.0])[0])


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 31, 128, 129, 288])
def test_attention_is_softmax_attention_over_the_visible_keys_of_each_rows_slot(length: int):
    heads = normal(3, 8, 16, seed=length)
    keys, values = normal(5, 2, 288, 16, seed=1), normal(5, 2, 288, 16, seed=2)
    slots, last = [4, 0, 2], [length - 1] * 5
    out = attend(heads, keys, values, slots=slots, last=last)
    for row, slot in enumerate(slots):
        for head in range(4):
            key, value = (part[slot, head // 2, :length].astype(np.float64) for part in (keys, values))
            weights = np.exp(key @ heads[row, head].astype(np.float64) / 4)
            np.testing.assert_allclose(out[row, head], weights @ value / weights.sum(), atol=2e-6)


@pytest.mark.parametrize("length", [1, 3, 4, 7, 30])
def test_heads_that_read_the_same_keys_together_give_the_bits_of_each_alone(length: int):
    heads, keys, values = normal(2, 4, 20, seed=0), normal(2, 1, 32, 20, seed=1), normal(2, 1, 32, 20, seed=2)
    rows = {"slots": [1, 0], "last": [length - 1] * 2}
    both = attend(heads, keys, values, **rows)
    for head in range(2):
        alone = attend(np.ascontiguousarray(heads[:, [head, 2, 3]]), keys, values, **rows)
        assert alone[:, 0].tobytes() == both[:, head].tobytes()


def test_attention_does_not_read_what_lies_beyond_the_last_key():
    heads, keys, values = normal(1, 4, 8, seed=0), normal(1, 1, 64, 8, seed=1), normal(1, 1, 64, 8, seed=2)
    before = attend(heads, keys, values, slots=[0], last=[9])
    keys[:, :, 10:] = values[:, :, 10:] = np.nan
    assert attend(heads, keys, values, slots=[0], last=[9]).tobytes() == before.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1, 6])
def test_attention_over_a_key_that_is_not_finite_is_not_finite(bad: float, place: int):
    heads, keys, values = normal(1, 3, 8, seed=0), normal(1, 1, 32, 8, seed=1), normal(1, 1, 32, 8, seed=2)
    keys[0, 0, place, 3] = bad
    values[0, 0, place, 3] = bad
    assert not np.isfinite(attend(heads, keys, values, slots=[0], last=[6])).all()


def test_rms_norm_and_gate_are_those_of_float64():
    x, weight = normal(5, 24, seed=3), normal(24, seed=4)
    out = np.empty_like(x)
    kernels.rms_norm(x, weight, np.float32(1e-6), out)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(out, wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * weight, rtol=1e-5)

    both = normal(5, 26, seed=5) * 30
    inner = np.empty((5, 13), dtype=np.float32)
    kernels.gate(both, np.empty(13, dtype=np.int32), inner)
    wide = both.astype(np.float64)
    np.testing.assert_allclose(inner, wide[:, :13] / (1 + np.exp(-wide[:, :13])) * wide[:, 13:], rtol=1e-5, atol=1e-9)


def test_draws_follow_the_cumulative_distribution_and_give_its_logarithm():
    scores = normal(1, 50, seed=6) * 3
    uniform = (np.arange(4000) + 0.5) / 4000
    tokens, logprobs = draw(np.repeat(scores, 4000, axis=0), uniform=uniform)
    wide = scores[0].astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum())
    np.testing.assert_allclose(logprobs, expected[tokens], atol=1e-5)
    counts = np.bincount(tokens, minlength=50) / 4000
    np.testing.assert_allclose(counts, np.exp(expected), atol=1.1 / 4000)
    assert (np.diff(tokens) >= 0).all()


def test_a_token_of_probability_zero_is_never_drawn():
    scores = [[-np.inf, 1.0, -np.inf, 0.0, -np.inf]] * 3
    tokens, logprobs = draw(scores, uniform=[0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))])
    assert tokens.tolist() == [1, 1, 3]
    assert np.isfinite(logprobs).all()


def test_a_greedy_row_takes_the_first_of_the_best():
    tokens, _ = draw([[0.0, 2.0, 1.0, 2.0]], uniform=[0.99], greedy=True)
    assert tokens.tolist() == [1]


@pytest.mark.parametrize("scores", [[0.0, np.nan, 1.0], [np.nan, 0.0, 1.0], [0.0, 1.0, np.inf], [-np.inf] * 3])
@pytest.mark.parametrize("greedy", [True, False])
def test_a_row_with_a_score_that_is_not_finite_has_no_finite_log_prob(scores, greedy: bool):
    tokens, logprobs = draw([scores, [1.0, 1.0, 1.0]], greedy=greedy)
    assert not np.isfinite(logprobs[0])
    assert 0 <= tokens[0] < 3
    assert np.isfinite(logprobs[1])


def test_rotation_turns_halves_by_the_position_and_leaves_the_values_alone():
    heads = normal(3, 4, 8, seed=7)
    before = heads.copy()
    angle = np.arange(10)[:, None] * 0.3 * np.ones(8)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    sin[:, :4] *= -1
    none = np.zeros((0, 8), dtype=np.float32)
    row = np.empty(8, dtype=np.float32)
    kernels.rotate(heads, none, np.float32(1e-6), cos, sin, np.array([0, 2, 9]), 3, row)
    for token, position in enumerate([0, 2, 9]):
        turn = np.exp(0.3j * position)
        for head in range(3):
            old = before[token, head, :4] + 1j * before[token, head, 4:]
            new = heads[token, head, :4] + 1j * heads[token, head, 4:]
            np.testing.assert_allclose(new, old * turn, atol=1e-6)
    np.testing.assert_array_equal(heads[:, 3], before[:, 3])
