"""The objectives against a slow float64 reference: random ragged batches, cut into packs in every way."""

from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.learner.slow_objective import TokenTable, slow_loss, slow_rows

from streamrl.algorithms.aggregation import AGGREGATIONS
from streamrl.algorithms.proximal import PROXIMALS
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets, loss_mask
from streamrl.learner.objectives import Objective, Sums, nll_loss, policy_loss
from streamrl.types import RolloutRows

PAD = EOS = 2
STEP = 3
"""The step that is trained; tokens are of steps 0 to 3."""
CPU = torch.device("cpu")


@st.composite
def batches(draw: st.DrawFn) -> tuple[RolloutRows, np.ndarray]:
    """Rows and advantages: length 1, all truncated, no sampled token, failed scores, pad id == eos id."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=8))
    count = sum(lengths)
    origin = draw(st.lists(st.sampled_from([0, 1, 1, 2]), min_size=count, max_size=count))
    ids = draw(st.lists(st.sampled_from([PAD, EOS, 5]), min_size=count, max_size=count))
    valid = draw(st.lists(st.sampled_from([True, True, False]), min_size=len(lengths), max_size=len(lengths)))
    advantages = draw(st.lists(st.floats(-2, 2, width=32), min_size=len(lengths), max_size=len(lengths)))
    rows = RolloutRows(
        offsets=np.cumsum([0, *lengths]).astype(np.int64),
        token_ids=np.array(ids, np.int32),
        token_origin=np.array(origin, np.uint8),
        rollout_logprobs=(-0.5 - np.arange(count) / 64).astype(np.float32),
        token_steps=np.arange(count) % (STEP + 1),
        group=np.arange(len(lengths)),
        sample_index=np.zeros(len(lengths), np.int64),
        rewards=np.zeros(len(lengths)),
        valid=np.array(valid),
    )
    return rows, np.where(rows.valid, np.array(advantages, np.float64), 0.0)


def run(
    objective: Objective, rows: RolloutRows, advantages: np.ndarray, budget: int
) -> tuple[float, torch.Tensor, Sums]:
    """(loss, gradient by each token's log-prob, sums) over all packs."""
    table = TokenTable(rows, 0)
    sums, loss = Sums.zero(CPU), 0.0
    for packed in pack(rows, advantages, budget, step=STEP):
        part, more = objective(table, packed, count_targets(rows))
        part.backward()
        loss, sums = loss + part.item(), sums.plus(more)
    gradient = table.logprobs.grad
    return loss, torch.zeros_like(table.logprobs) if gradient is None else gradient, sums


def algorithm_of(
    *, proximal: str = "recompute", correction: str = "tis", aggregation: str = "token_mean"
) -> AlgorithmConfig:
    return AlgorithmConfig(proximal=proximal, correction=correction, aggregation=aggregation, tis_cap=1.5, horizon=7)


def objective_of(algorithm: AlgorithmConfig | None = None) -> Objective:
    return partial(policy_loss, algorithm=algorithm or algorithm_of(), temperature=1.0)


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
@pytest.mark.parametrize("correction", ["none", "tis"])
@pytest.mark.parametrize("proximal", sorted(PROXIMALS))
@settings(deadline=None, max_examples=25)
@given(batch=batches(), budget=st.integers(7, 30))
def test_policy_loss_matches_the_slow_reference_however_it_is_packed(
    aggregation: str, correction: str, proximal: str, batch: tuple[RolloutRows, np.ndarray], budget: int
) -> None:
    rows, advantages = batch
    algorithm = algorithm_of(proximal=proximal, correction=correction, aggregation=aggregation)
    objective = objective_of(algorithm)
    loss, gradient, sums = run(objective, rows, advantages, budget)
    table = TokenTable(rows, 0)
    expected = slow_loss(slow_rows(rows, advantages, STEP, table), algorithm)
    assert loss == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    assert sums.metrics()["loss/policy"] == pytest.approx(loss, rel=1e-6, abs=1e-7)
    learns = loss_mask(rows)
    assert (gradient[~torch.from_numpy(learns)] == 0.0).all()
    if learns.any():
        expected.backward()
        torch.testing.assert_close(gradient, table.logprobs.grad, rtol=1e-5, atol=1e-8)
    whole = run(objective, rows, advantages, 4096)
    torch.testing.assert_close(gradient, whole[1], rtol=1e-6, atol=1e-9)


@settings(deadline=None, max_examples=25)
@given(batch=batches())
def test_tis_gradient_is_the_weighted_policy_gradient(batch: tuple[RolloutRows, np.ndarray]) -> None:
    rows, advantages = batch
    _, gradient, _ = run(objective_of(), rows, advantages, 4096)
    drift = np.exp(TokenTable(rows, 0).logprobs.detach().numpy() - rows.rollout_logprobs)
    per_token = np.repeat(advantages, rows.lengths()) * np.minimum(drift, 1.5)
    expected = np.where(loss_mask(rows), -per_token / max(count_targets(rows).tokens, 1), 0.0)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5, atol=1e-8)


@settings(deadline=None, max_examples=25)
@given(batch=batches(), budget=st.integers(7, 30))
def test_nll_is_the_mean_over_trained_tokens(batch: tuple[RolloutRows, np.ndarray], budget: int) -> None:
    rows, advantages = batch
    loss, gradient, sums = run(nll_loss, rows, advantages, budget)
    logprobs = TokenTable(rows, 0).logprobs.detach().numpy()[loss_mask(rows)]
    assert loss == pytest.approx(-logprobs.mean() if len(logprobs) else 0.0, rel=1e-5)
    assert (gradient[~torch.from_numpy(loss_mask(rows))] == 0.0).all()
    assert sums.metrics()["mismatch/kl"] == 0.0


@settings(deadline=None, max_examples=25)
@given(batch=batches())
def test_metrics_are_means_over_trained_tokens(batch: tuple[RolloutRows, np.ndarray]) -> None:
    rows, advantages = batch
    metrics = run(objective_of(), rows, advantages, 9)[2].metrics()
    learns = loss_mask(rows)
    distance = (TokenTable(rows, 0).logprobs.detach().numpy() - rows.rollout_logprobs)[learns]
    count = max(len(distance), 1)
    ratio = np.exp(distance)
    entropies = TokenTable(rows, 0).entropies.detach().numpy()[learns]
    assert metrics["loss/entropy"] == pytest.approx(entropies.sum() / count)
    assert metrics["ratio/mean"] == pytest.approx(ratio.sum() / count, rel=1e-5)
    assert metrics["ratio/clip_fraction"] == pytest.approx((ratio > 1.5).sum() / count)
    assert metrics["mismatch/kl"] == pytest.approx((ratio - 1 - distance).sum() / count, rel=1e-4, abs=1e-7)
    assert metrics["mismatch/logprob_abs_max"] == pytest.approx(np.abs(distance).max(initial=0.0), rel=1e-5)
