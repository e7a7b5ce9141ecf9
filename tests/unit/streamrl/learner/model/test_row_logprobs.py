"""Log-probs by whole rows of logits: those of log_softmax, with every gradient, however many rows exist at a time."""

import pytest
import torch

from streamrl.learner.model.row_logprobs import PRODUCT_BYTES, OutputLayer, row_logprobs, tokens_of_a_chunk

VOCAB, HIDDEN = 67, 24
ALL = 10**9


def normal(*size: int, seed: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def inputs(tokens: int, *, bias: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    hidden, weight = normal(tokens, HIDDEN, seed=0).requires_grad_(), normal(VOCAB, HIDDEN, seed=1).requires_grad_()
    targets = torch.randint(0, VOCAB, (tokens,), generator=torch.Generator().manual_seed(2))
    return hidden, weight, normal(VOCAB, seed=3).requires_grad_() if bias else None, targets


def plainly(hidden, weight, bias, targets, temperature):
    logits = torch.nn.functional.linear(hidden, weight, bias) / temperature
    logprobs = logits.log_softmax(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("entropy_gradient", [False, True], ids=["no entropy", "entropy"])
@pytest.mark.parametrize("bytes_at_once", [ALL, 200 * 128 * 4, 1], ids=["at once", "in chunks", "one by one"])
def test_values_and_gradients_are_those_of_log_softmax(bias: bool, entropy_gradient: bool, bytes_at_once: int) -> None:
    tokens = 300 if bytes_at_once > 1 else 5
    found, expected = [], []
    for results, compute in (
        (found, lambda *args: row_logprobs(*args, bytes_at_once, entropy_gradient)),
        (expected, plainly),
    ):
        hidden, weight, bias_V, targets = inputs(tokens, bias=bias)
        logprobs, entropy = compute(hidden, weight, bias_V, targets, 0.7)
        loss = (logprobs * normal(tokens, seed=4)).sum()
        if entropy_gradient:
            loss = loss + (entropy * normal(tokens, seed=5)).sum()
        loss.backward()
        results += [logprobs, entropy, hidden.grad, weight.grad, *([] if bias_V is None else [bias_V.grad])]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


def test_logits_that_were_kept_are_made_again_for_a_second_backward() -> None:
    hidden, weight, bias, targets = inputs(40, bias=False)
    logprobs, _ = row_logprobs(hidden, weight, bias, targets, 1.0, ALL)
    gradients = []
    for _ in range(2):
        hidden.grad = None
        logprobs.sum().backward(retain_graph=True)
        gradients.append(hidden.grad.clone())
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-6)


def test_nothing_is_computed_of_what_needs_no_gradient() -> None:
    hidden, weight, _, targets = inputs(8, bias=False)
    weight = weight.detach()
    logprobs, entropy = row_logprobs(hidden, weight, None, targets, 1.0, ALL)
    logprobs.sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None
    assert not entropy.requires_grad


@pytest.mark.parametrize("rows", [64, 67, 151_936, 7])
def test_the_vocabulary_falls_in_parts_that_a_library_computes_fast(rows: int) -> None:
    layer = OutputLayer(torch.zeros(rows, 1, dtype=torch.bfloat16), None)
    parts = list(layer.parts())
    assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
    assert parts[-1].stop == rows
    assert all((part.stop - part.start) * 2 % PRODUCT_BYTES == 0 for part in parts[:-1])
    assert layer.padded * 2 % 256 == 0


@pytest.mark.parametrize("tokens", [1, 127, 128, 1000, 16_384])
@pytest.mark.parametrize("chunk", [1, 100, 128, 300, 5000])
def test_chunks_are_few_equal_and_within_the_bytes(tokens: int, chunk: int) -> None:
    layer = OutputLayer(torch.zeros(1000, 1, dtype=torch.bfloat16), None)
    size = tokens_of_a_chunk(tokens, layer, chunk * layer.padded * 2)
    assert 1 <= size <= min(tokens, chunk)
    assert size == tokens or size % 128 == 0 or chunk < 128
