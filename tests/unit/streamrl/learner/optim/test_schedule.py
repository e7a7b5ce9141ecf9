"""Rates, the split of rows over ranks, digests and gates: small pure functions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import NonFiniteError
from streamrl.learner.batch.balance import split_rows, workload
from streamrl.learner.checkpoint.digest import weight_digest
from streamrl.learner.finite import require_finite, require_finite_weight
from streamrl.learner.optim.optimizer import clip_gradients, make_optimizer
from streamrl.learner.optim.schedule import learning_rate, lr_factor

DECAYS = ("constant", "linear", "cosine")


@pytest.mark.parametrize("decay", DECAYS)
@settings(deadline=None, max_examples=60)
@given(warmup=st.integers(0, 20), total=st.integers(1, 60), ratio=st.floats(0.0, 1.0))
def test_the_rate_rises_to_one_and_falls_to_its_floor(decay: str, warmup: int, total: int, ratio: float) -> None:
    rates = [
        lr_factor(s, warmup_steps=warmup, total_steps=total, decay=decay, min_lr_ratio=ratio) for s in range(total + 5)
    ]
    rise, fall = rates[:warmup], rates[max(warmup - 1, 0) :]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    assert all(0.0 < rate <= 1.0 for rate in rise)
    if warmup <= total:
        assert rates[max(warmup - 1, 0)] == 1.0
    floor = 1.0 if decay == "constant" else ratio
    if warmup < total and total > 1:
        assert rates[total - 1] == pytest.approx(floor)
        assert set(rates[total:]) == {rates[total - 1]}


def test_the_rate_is_the_peak_times_the_factor() -> None:
    config = OptimizerConfig(lr=2.0, warmup_steps=4, decay="linear", min_lr_ratio=0.0)
    assert [learning_rate(s, config, 8) for s in (0, 3, 5, 7)] == [0.5, 2.0, 1.0, 0.0]


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 3000), max_size=40),
    per_group=st.integers(1, 8),
    ranks=st.integers(1, 5),
)
def test_every_row_goes_to_one_rank_and_no_rank_has_more_than_its_share_and_one_row(
    lengths: list[int], per_group: int, ranks: int
) -> None:
    lengths_N = np.array(lengths, np.int64)
    split = split_rows(lengths_N, np.arange(len(lengths)) // per_group, ranks, 64)
    assert len(split) == ranks
    assert sorted(np.concatenate(split).tolist()) == list(range(len(lengths)))
    assert all((np.diff(rows) > 0).all() for rows in split)
    work = workload(lengths_N, 64)
    fair = work.sum() / ranks
    # Longest first is never over the mean by more than the largest item; whole groups by at most 5%.
    assert all(work[rows].sum() <= max(1.05 * fair, fair + work.max(initial=0.0)) + 1e-6 for rows in split)


def test_groups_stay_whole_when_that_is_balanced() -> None:
    group = np.repeat(np.arange(8), 4)
    for rows in split_rows(np.full(32, 100), group, 2, 64):
        assert np.bincount(group[rows]).tolist().count(4) == 4


def test_the_longest_rows_are_placed_first() -> None:
    lengths = np.array([1, 1, 1, 1, 4])
    split = split_rows(lengths, np.arange(5), 2, hidden_size=10**9)
    assert [lengths[rows].sum() for rows in split] == [4, 4]


def test_one_group_is_taken_apart_over_the_ranks() -> None:
    split = split_rows(np.full(8, 100), np.zeros(8, np.int64), 4, 64)
    assert [len(rows) for rows in split] == [2, 2, 2, 2]


def test_the_digest_sees_names_shapes_dtypes_and_single_bits_but_no_order() -> None:
    a, b = torch.arange(6.0), torch.zeros(2, 3, dtype=torch.bfloat16)
    same = weight_digest([("a", a), ("b", b)])
    assert weight_digest([("b", b.clone()), ("a", a.clone())]) == same
    negative_zero = b.clone()
    negative_zero[1, 2] = -0.0
    others = [
        [("a", a), ("c", b)],
        [("a", a.view(2, 3)), ("b", b)],
        [("a", a), ("b", b.view(torch.float16))],
        [("a", a), ("b", negative_zero)],
        [("a", a)],
    ]
    assert len({same, *map(weight_digest, others)}) == 6


def test_invariant_12_the_gates_name_what_is_not_finite() -> None:
    require_finite({"loss/policy": 1.0}, "step 3")
    with pytest.raises(NonFiniteError, match=r"step 3: grad/norm = nan, loss/policy = inf"):
        require_finite({"loss/policy": float("inf"), "ok": 0.0, "grad/norm": float("nan")}, "step 3")
    require_finite_weight("w", torch.zeros(3))
    with pytest.raises(NonFiniteError, match="weight w: 2 of 3"):
        require_finite_weight("w", torch.tensor([float("nan"), 1.0, float("-inf")]))


def test_clipping_returns_the_norm_before_and_bounds_the_norm_after() -> None:
    params = [torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)]
    params[0].grad, params[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert clip_gradients(params, 10.0) == 5.0
    assert params[1].grad.tolist() == [4.0]
    assert clip_gradients(params, 1.0) == 5.0
    assert torch.cat([p.grad for p in params]).norm().item() == pytest.approx(1.0, rel=1e-5)


def test_weight_decay_leaves_norms_and_biases_alone() -> None:
    matrix, bias = torch.ones(2, 2, requires_grad=True), torch.ones(2, requires_grad=True)
    optimizer = make_optimizer([matrix, bias], OptimizerConfig(lr=0.1, weight_decay=0.5))
    matrix.grad, bias.grad = torch.zeros(2, 2), torch.zeros(2)
    optimizer.step()
    assert bias.tolist() == [1.0, 1.0]
    assert matrix.flatten().tolist() == pytest.approx([0.95] * 4)
