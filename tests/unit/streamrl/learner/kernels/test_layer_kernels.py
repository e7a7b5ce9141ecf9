"""The learner's Triton kernels against plain torch, forward and backward; by Triton's interpreter without a GPU."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton", reason="make test-kernels")

from streamrl.learner.kernels import softmax
from streamrl.learner.layers.layer_ops import PLAIN_OPS, LayerOps, triton_ops
from streamrl.learner.model import logit_passes

# The interpreter computes by numpy, which warns of infinities.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The interpreter rounds bfloat16 towards zero, as numpy has no such type.
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
DTYPES = pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-5), (HALF, 3e-2)], ids=["float32", "16-bit"])


def normal(*size: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    found = torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)
    return found.requires_grad_()


def ops() -> LayerOps:
    found = triton_ops()
    assert found is not None
    return found


def compare(
    compute: Callable[[LayerOps], torch.Tensor | tuple[torch.Tensor, ...]], given: list[torch.Tensor], bound: float
) -> None:
    """Outputs, and gradients of what is `given`, of both ways to compute."""
    found = []
    for which in (ops(), PLAIN_OPS):
        outputs = compute(which)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
        weights = [normal(*output.shape, seed=9 + i, dtype=output.dtype) for i, output in enumerate(outputs)]
        loss = sum((output.float() * weight.float()).sum() for output, weight in zip(outputs, weights, strict=True))
        found.append([*outputs, *torch.autograd.grad(loss, given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=bound, atol=bound * max(1.0, float(other.detach().abs().max())))


@DTYPES
@pytest.mark.parametrize("hidden", [48, 128])
def test_norms(dtype: torch.dtype, bound: float, hidden: int) -> None:
    x, residual = (normal(1, 37, hidden, seed=seed, dtype=dtype) for seed in (0, 1))
    weight = normal(hidden, seed=2, dtype=dtype)
    compare(lambda which: which.norm(x, weight, 1e-6), [x, weight], bound)
    compare(lambda which: which.add_norm(x, residual, weight, 1e-6), [x, residual, weight], bound)


@DTYPES
@pytest.mark.parametrize("normed", [True, False], ids=["Qwen3", "Llama"])
def test_rotation(dtype: torch.dtype, bound: float, normed: bool) -> None:
    x = normal(19, 3, 24, seed=0, dtype=dtype)
    angles = torch.rand(19, 12, generator=torch.Generator().manual_seed(1)).repeat(1, 2).to(DEVICE)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    weight = normal(24, seed=2, dtype=dtype) if normed else None
    given = [x] if weight is None else [x, weight]
    compare(lambda which: which.rotate(x, weight, cos, sin, 1e-6), given, bound)


@DTYPES
def test_gate(dtype: torch.dtype, bound: float) -> None:
    opened, up = (normal(5, 700, seed=seed, dtype=dtype) for seed in (0, 1))
    compare(lambda which: which.gate(opened, up), [opened, up], bound)


@DTYPES
@pytest.mark.parametrize("of_entropy", [False, True], ids=["no entropy", "entropy"])
def test_softmax_passes(dtype: torch.dtype, bound: float, of_entropy: bool) -> None:
    """Rows with room behind them, as `row_logprobs` has them."""
    room = normal(11, 4224, seed=0, dtype=dtype).detach()
    targets = torch.randint(0, 4100, (11,), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    facts, gradients = [], []
    for passes in (softmax, logit_passes):
        logits = room.clone()[:, :4100]
        measured = passes.measure(logits, targets, 1.25)
        of_logprob, of_found = (normal(11, seed=seed, dtype=torch.float32).detach() for seed in (2, 3))
        found = passes.differentiate_(
            logits, targets, 1.25, *measured[:2], of_logprob, of_found if of_entropy else None
        )
        assert found.data_ptr() == logits.data_ptr(), "gradients lie where the logits lay"
        facts.append(measured)
        gradients.append(found)
    for one, other in zip(*facts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(*gradients, rtol=bound, atol=bound)


def test_a_logit_that_is_not_a_number_shows_in_its_row_alone() -> None:
    logits = normal(3, 100, seed=0, dtype=torch.float32).detach()
    logits[1, 7] = float("nan")
    for found in softmax.measure(logits, torch.tensor([1, 7, 3], device=DEVICE), 1.0):
        assert found.isnan().tolist() == [False, True, False]
