"""Log-probs and entropy over an output layer whose rows are spread over ranks."""

from pathlib import Path

import pytest
import torch
from support.learner.rank_processes import run_ranks

from streamrl.learner.megatron.chunks.vocabulary import OwnRows, spread_logprobs

PROGRAM = Path(__file__).with_name("vocabulary_rank.py")


@pytest.mark.parametrize("world", [1, 2, 3])
def test_log_probs_entropy_and_gradients_are_those_of_the_whole_vocabulary(world: int, tmp_path: Path) -> None:
    for rank in run_ranks(PROGRAM, tmp_path, world):
        assert len(rank["apart"]) == 18
        # Logits of 400, as some are, lie 3e-5 apart in float32.
        assert max(rank["apart"]) <= 3e-5


def test_padded_rows_have_no_probability_and_no_gradient() -> None:
    weight = torch.cat([torch.zeros(4, 8), torch.full((4, 8), 100.0)]).requires_grad_()
    targets = torch.tensor([0, 3])
    logprobs, entropy = spread_logprobs(torch.ones(2, 8), weight, targets, 1.0, OwnRows(0, 4, None), True)
    assert torch.allclose(logprobs, torch.tensor(0.25).log())
    assert torch.allclose(entropy, torch.tensor(4.0).log())
    (logprobs + entropy).sum().backward()
    assert weight.grad is not None
    assert weight.grad[:4].any()
    assert not weight.grad[4:].any()


def test_a_pack_without_targets_gives_gradients_of_zero() -> None:
    hidden, weight = torch.ones(0, 8, requires_grad=True), torch.ones(4, 8)
    nothing = torch.zeros(0, dtype=torch.int64)
    logprobs, entropy = spread_logprobs(hidden, weight, nothing, 1.0, OwnRows(0, 4, None))
    logprobs.sum().backward()
    assert logprobs.shape == entropy.shape == (0,)
    assert hidden.grad is not None
