"""Log-probs by blocks of the vocabulary: what all logits at once give, and never as many logits."""

import math
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from streamrl.learner.model import chunked_logprobs as vocabulary
from streamrl.learner.model.logprobs import token_logprobs

ALL = 2**40


class Result(NamedTuple):
    logprobs: torch.Tensor
    entropy: torch.Tensor
    gradients: list[torch.Tensor]


class Inputs(NamedTuple):
    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    targets: torch.Tensor
    weights: torch.Tensor


def make_inputs(
    *, tokens: int = 37, vocabulary_size: int = 101, size: int = 12, bias: bool = False, scale: float = 1.0
) -> Inputs:
    print("seed 6")
    generator = torch.Generator().manual_seed(6)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    targets = torch.randint(0, vocabulary_size, (tokens,), generator=generator)
    bias_V = normal(vocabulary_size) if bias else None
    return Inputs(scale * normal(tokens, size), normal(vocabulary_size, size), bias_V, targets, normal(tokens))


def run(
    inputs: Inputs, most: int, *, entropy: bool = True, dtype: torch.dtype = torch.float32, frozen: bool = False
) -> Result:
    given = [None if t is None else t.to(dtype, copy=True).requires_grad_() for t in inputs[:3]]
    if frozen:
        given[1].requires_grad_(False)
    logprobs, entropy_K = token_logprobs(given[0], given[1], given[2], inputs.targets, 0.7, most, entropy)
    loss = (inputs.weights * logprobs).sum()
    (loss + (inputs.weights.flip(0) * entropy_K).sum() if entropy else loss).backward()
    return Result(logprobs.detach(), entropy_K.detach(), [t.grad for t in given if t is not None and t.requires_grad])


def assert_same(got: Result, expected: Result, tolerance: float = 1e-5) -> None:
    assert len(got.gradients) == len(expected.gradients)
    for a, b in zip([*got[:2], *got.gradients], [*expected[:2], *expected.gradients], strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("most", [1, 37 * 10, 37 * 64, 37 * 100])
def test_blocks_give_what_all_logits_at_once_give(most: int, entropy: bool, bias: bool) -> None:
    inputs = make_inputs(bias=bias)
    assert_same(run(inputs, most, entropy=entropy), run(inputs, ALL, entropy=entropy))


def test_gradients_of_more_tokens_than_a_block_takes_add_up() -> None:
    inputs = make_inputs(tokens=vocabulary.TOKENS + 5, vocabulary_size=4, size=3)
    assert_same(run(inputs, 1), run(inputs, ALL), tolerance=1e-4)


def test_bfloat16_differs_by_its_own_rounding() -> None:
    inputs = make_inputs()
    got = run(inputs, 370, dtype=torch.bfloat16)
    assert got.logprobs.dtype == torch.float32
    assert_same(got, run(inputs, ALL, dtype=torch.bfloat16), tolerance=2e-2)


def test_a_head_that_is_not_trained_gets_no_gradient_and_its_input_the_same() -> None:
    inputs = make_inputs()
    frozen = run(inputs, 370, frozen=True)
    assert len(frozen.gradients) == 1
    torch.testing.assert_close(frozen.gradients[0], run(inputs, ALL).gradients[0], rtol=1e-5, atol=1e-5)


def test_logits_of_thousands_neither_overflow_nor_lose_the_others() -> None:
    inputs = make_inputs(scale=1000.0)
    got, exact = run(inputs, 370, entropy=False), inputs.hidden.double() @ inputs.weight.double().T / 0.7
    assert exact.max() > 5000
    expected = exact.log_softmax(-1).gather(1, inputs.targets[:, None])[:, 0]
    torch.testing.assert_close(got.logprobs.double(), expected, rtol=1e-5, atol=1e-2)
    assert all(gradient.isfinite().all() for gradient in got.gradients)


def test_a_logit_that_is_not_a_number_shows_in_the_log_prob_of_its_token_alone() -> None:
    inputs = make_inputs()
    inputs.hidden[3] = math.nan
    logprobs, entropy = token_logprobs(*inputs[:4], 1.0, 370)
    assert logprobs.isnan().nonzero().flatten().tolist() == entropy.isnan().nonzero().flatten().tolist() == [3]


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = (leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        self.elements = max([self.elements, *(tensor.numel() for tensor in tensors)])
        return result


@pytest.mark.parametrize("entropy", [False, True])
def test_no_tensor_of_tokens_by_vocabulary_is_made_forward_or_backward(entropy: bool) -> None:
    inputs = make_inputs(tokens=60, vocabulary_size=400, size=4)
    with Largest() as whole:
        run(inputs, ALL, entropy=entropy)
    with Largest() as blocked:
        run(inputs, 1200, entropy=entropy)
    assert whole.elements == 60 * 400
    # The weight itself is larger than a block and its room.
    assert blocked.elements <= max(2 * 1200, 400 * 4)
