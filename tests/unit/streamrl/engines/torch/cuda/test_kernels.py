"""The kernels of a GPU against plain torch, by Triton's interpreter where there is no GPU."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.engines.graph_engine import DEVICE, EXACT_ROWS

pytest.importorskip("triton", reason="make test-kernels")

from streamrl.engines.torch.cuda.draw import RowState, draw
from streamrl.engines.torch.cuda.matmul import invariant_mm
from streamrl.engines.torch.cuda.norms import gate, rms_norm
from streamrl.engines.torch.sampling import SamplingRows, Truncation, choose, mix, uniforms

# The interpreter computes by numpy, which warns of hashes that wrap around and of infinities.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")

# The interpreter rounds bfloat16 towards zero, as numpy has no such type.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
DTYPES = pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (HALF, 2e-2)], ids=["float32", "16-bit"])


def normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@DTYPES
def test_a_norm_adds_in_place_first(dtype: torch.dtype, bound: float) -> None:
    x, added, weight = normal(5, 48, dtype=dtype), normal(5, 48, seed=1, dtype=dtype), normal(48, seed=2, dtype=dtype)
    summed = x + added
    out = rms_norm(x, weight, 1e-6, added)
    torch.testing.assert_close(x, summed, rtol=0, atol=0)
    torch.testing.assert_close(
        out, F.rms_norm(summed.float(), (48,), weight.float(), 1e-6).to(dtype), rtol=bound, atol=bound
    )


@DTYPES
def test_the_gate_is_silu_times_up(dtype: torch.dtype, bound: float) -> None:
    both = normal(3, 2 * 1100, dtype=dtype)
    torch.testing.assert_close(gate(both), F.silu(both[:, :1100]) * both[:, 1100:], rtol=bound, atol=bound)


@EXACT_ROWS
@DTYPES
def test_a_row_of_a_product_does_not_know_its_company(dtype: torch.dtype, bound: float) -> None:
    x, weight = normal(70, 100, dtype=dtype), normal(130, 100, seed=1, dtype=dtype).t()
    whole = invariant_mm(x, weight)
    torch.testing.assert_close(whole, x @ weight, rtol=bound, atol=bound * 10)
    for rows in (slice(0, 1), slice(3, 20), slice(64, 70)):
        assert torch.equal(invariant_mm(x[rows], weight), whole[rows])


SAMPLINGS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.5},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
]


def row_state(
    rows: int, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> RowState:
    """Row i at position 7 draws token i of the stream of seed i."""

    def filled(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows,), value, dtype=dtype, device=DEVICE)

    return RowState(
        token=filled(0, torch.int64),
        position=filled(7, torch.int64),
        index=torch.arange(rows, device=DEVICE),
        stream=torch.from_numpy(mix(np.arange(rows, dtype=np.uint64)).view(np.int64)).to(DEVICE),
        temperature=filled(temperature, torch.float32),
        top_k=filled(top_k, torch.int32),
        top_p=filled(top_p, torch.float32),
        min_p=filled(min_p, torch.float32),
    )


def chosen_by_torch(logits: torch.Tensor, state: RowState) -> tuple[torch.Tensor, torch.Tensor]:
    rows, greedy = len(logits), state.temperature == 0
    sampling = SamplingRows(
        temperature=torch.where(greedy, 1.0, state.temperature),
        greedy=greedy,
        all_greedy=bool(greedy.all()),
        truncation=Truncation(torch.arange(rows, device=DEVICE), state.top_k.long(), state.top_p, state.min_p),
    )
    numbers = uniforms(mix(np.arange(rows, dtype=np.uint64)), np.arange(rows))
    return choose(logits, sampling, torch.from_numpy(numbers).to(DEVICE))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_tokens_that_are_drawn_are_those_of_the_cpu(sampling: dict[str, float]) -> None:
    logits, state = 3 * normal(40, 211), row_state(40, **sampling)
    expected, expected_logprobs = chosen_by_torch(logits, state)
    tokens, logprobs = torch.empty(40, dtype=torch.int32, device=DEVICE), torch.empty(40, device=DEVICE)
    draw(logits, state, tokens, logprobs, 100)
    assert tokens.tolist() == expected.tolist()
    torch.testing.assert_close(logprobs, expected_logprobs, rtol=1e-5, atol=1e-5)
    assert state.token.tolist() == expected.tolist()
    assert state.position.tolist() == [8] * 40
    assert state.index.tolist() == list(range(1, 41))


def test_a_row_that_is_not_there_or_not_finite_does_not_move_another() -> None:
    logits, state = normal(4, 50), row_state(4)
    expected, _ = chosen_by_torch(logits, state)
    logits[1, 7] = float("nan")
    logits[3, 9] = float("inf")
    state.position[0] = -1
    tokens, logprobs = torch.zeros(4, dtype=torch.int32, device=DEVICE), torch.zeros(4, device=DEVICE)
    draw(logits, state, tokens, logprobs, 8)
    assert state.position.tolist() == [-1, 8, 8, 8]
    assert logprobs.isnan().tolist() == [False, True, False, True]
    assert tokens[2] == expected[2]
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < 50


def test_the_last_position_is_never_passed() -> None:
    state = row_state(2)
    draw(normal(2, 50), state, torch.empty(2, dtype=torch.int32, device=DEVICE), torch.empty(2, device=DEVICE), 7)
    assert state.position.tolist() == [7, 7]
