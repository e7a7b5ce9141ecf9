"""Losses of demonstrations and preference pairs, against one pair at a time in plain floats."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.learner.small_policy import make_model, make_rows

from streamrl.algorithms.supervised import bradley_terry, dpo, preference_margin, sft
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.errors import ConfigError, DataError
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets, loss_mask
from streamrl.learner.fsdp import FsdpBackend
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.objectives import nll_loss
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.learner.supervised.preferences import dpo_loss, pack_pairs
from streamrl.types import RolloutRows

SEEDS = range(8)


def columns(seed: int, count: int) -> list[torch.Tensor]:
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    length = int(torch.randint(1, 9, (), generator=generator))
    drawn = [20.0 * torch.randn(length, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [drawn[0].requires_grad_(), drawn[1].requires_grad_(), *drawn[2:]]


def sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value)) if value >= 0 else math.exp(value) / (1.0 + math.exp(value))


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value)) if value >= 0 else value - math.log1p(math.exp(value))


def check(loss: torch.Tensor, values: list[torch.Tensor], expected: list[float], slopes: list[list[float]]) -> None:
    torch.testing.assert_close(loss.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    loss.sum().backward()
    for value, slope in zip(values, slopes, strict=False):
        torch.testing.assert_close(value.grad, torch.tensor(slope, dtype=torch.float64), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_dpo_is_the_log_sigmoid_of_how_much_more_the_policy_prefers_the_chosen_one(seed: int, smoothing: float) -> None:
    values = columns(seed, 4)
    expected, slopes = [], []
    for chosen, rejected, of_chosen, of_rejected in zip(*(one.tolist() for one in values), strict=True):
        margin = 0.2 * ((chosen - of_chosen) - (rejected - of_rejected))
        expected.append(-(1 - smoothing) * log_sigmoid(margin) - smoothing * log_sigmoid(-margin))
        slopes.append(0.2 * (-(1 - smoothing) * sigmoid(-margin) + smoothing * sigmoid(margin)))
    check(dpo(*values, 0.2, smoothing), values, expected, [slopes, [-slope for slope in slopes]])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("centre", [0.0, 0.01])
def test_bradley_terry_is_the_log_sigmoid_of_the_difference_of_two_scores(seed: int, centre: float) -> None:
    values = columns(seed, 3)
    expected, slopes = [], []
    for chosen, rejected, margin in zip(*(one.tolist() for one in values), strict=True):
        expected.append(-log_sigmoid(chosen - rejected - margin) + centre * (chosen + rejected) ** 2)
        push, pull = sigmoid(margin + rejected - chosen), 2 * centre * (chosen + rejected)
        slopes.append((pull - push, pull + push))
    got = bradley_terry(values[0], values[1], values[2], centre)
    check(got, values, expected, [[one[side] for one in slopes] for side in (0, 1)])


def test_a_loss_is_finite_however_sure_a_policy_is() -> None:
    far = torch.tensor([1e4, -1e4], dtype=torch.float32)
    for loss in (dpo(far, -far, 0 * far, 0 * far, 0.5), bradley_terry(far, -far)):
        assert loss[0] == 0.0 < loss[1] < float("inf")


def test_sft_is_the_mean_over_the_tokens_of_the_batch_of_what_they_cost() -> None:
    rows, policy = make_rows(), PolicyModel(make_model())
    values = []
    for budget in (16, 4096):
        parts = [nll_loss(policy, one, count_targets(rows))[0].item() for one in pack(rows, np.zeros(8), budget)]
        values.append(sum(parts))
    exact = policy.model.double()
    costs = []
    for row in range(8):
        start, end = rows.offsets[row : row + 2]
        logits = torch.nn.functional.linear(hidden(exact, rows, row), exact.get_output_embeddings().weight)
        costs += [
            -logits[t - 1 - start].log_softmax(0)[int(rows.token_ids[t])].item()
            for t in range(start, end)
            if loss_mask(rows)[t]
        ]
    assert values == pytest.approx([sum(costs) / len(costs)] * 2, rel=1e-5)
    assert sft(torch.tensor([-2.0, 0.0])).tolist() == [2.0, 0.0]


def hidden(model: torch.nn.Module, rows: RolloutRows, row: int) -> torch.Tensor:
    """[T, H], the last hidden states of one row alone."""
    alone = replace(
        rows,
        offsets=np.array([0, rows.offsets[row + 1] - rows.offsets[row]]),
        **{
            name: getattr(rows, name)[rows.offsets[row] : rows.offsets[row + 1]]
            for name in ("token_ids", "token_origin", "rollout_logprobs", "token_steps")
        },
        **{name: getattr(rows, name)[row : row + 1] for name in ("group", "sample_index", "rewards")},
        valid=np.ones(1, bool),
    )
    length = len(alone.token_ids)
    whole = replace(alone, token_origin=np.array([0] + [1] * (length - 1), np.uint8))
    (packed,) = pack(whole, np.zeros(1), 4096)
    states = model.base_model(
        input_ids=packed.ids[None],
        position_ids=packed.position_ids[None],
        attention_mask=None,
        use_cache=False,
        segments=packed.layout,
    ).last_hidden_state[0]
    return states


# ---- pairs on packs


def pairs(count: int = 6, seed: int = 9) -> RolloutRows:
    rows = make_rows(rows=2 * count, seed=seed)
    origin = np.ones(rows.num_tokens, np.uint8)
    origin[rows.offsets[:-1]] = 0
    return replace(rows, token_origin=origin, valid=np.ones(2 * count, bool), group=np.arange(2 * count) // 2)


@pytest.mark.parametrize("budget", [22, 50, 4096])
def test_dpo_of_packs_is_that_of_the_pairs_however_they_are_cut(budget: int) -> None:
    rows, policy, reference = pairs(), PolicyModel(make_model()), PolicyModel(make_model(6))
    packs = pack_pairs(rows, budget)
    assert sum(one.num_targets for one in packs) == count_targets(rows).tokens
    assert all(one.num_tokens <= budget for one in packs)
    loss = sum(dpo_loss(policy, one, count_targets(rows), reference, 0.3)[0] for one in packs)
    loss.backward()
    gradient = next(policy.parameters()).grad.clone()
    policy.zero_grad()
    # Each row by itself, in a pack of its own.
    sums = [[], []]
    for which, model in enumerate((policy, reference)):
        for row in range(12):
            only = replace(rows, valid=np.arange(12) == row)
            (packed,) = pack(only, np.zeros(12), 4096)
            sums[which].append(model(packed, 1.0)[0].sum())
    ours, theirs = (torch.stack(one) for one in sums)
    slow = dpo(ours[::2], ours[1::2], theirs[::2].detach(), theirs[1::2].detach(), 0.3).mean()
    slow.backward()
    assert loss.item() == pytest.approx(slow.item(), rel=1e-5)
    torch.testing.assert_close(gradient, next(policy.parameters()).grad, rtol=1e-3, atol=1e-6)


def test_what_is_no_pair_is_refused() -> None:
    rows = pairs()
    with pytest.raises(DataError, match="7 rows are no pairs"):
        pack_pairs(make_valid(7), 4096)
    with pytest.raises(DataError, match="row 3 has no token to train on"):
        pack_pairs(replace(rows, valid=np.arange(12) != 3), 4096)
    longest = int(rows.lengths().reshape(-1, 2).sum(1).max())
    with pytest.raises(ConfigError, match=f"has {longest} tokens, .*micro_batch_tokens = {longest - 1}"):
        pack_pairs(rows, longest - 1)


def make_valid(count: int) -> RolloutRows:
    rows = make_rows(rows=count)
    origin = np.ones(rows.num_tokens, np.uint8)
    origin[rows.offsets[:-1]] = 0
    return replace(rows, token_origin=origin, valid=np.ones(count, bool))


@pytest.fixture
def group(tmp_path) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path / "store", device=torch.device("cpu"))
    yield group
    group.close()


def test_a_learner_comes_to_prefer_what_was_chosen(group: LearnerGroup) -> None:
    rows = pairs()
    reference = FrozenPolicy(make_model, group, torch.float32)
    objective = partial(dpo_loss, reference=reference, beta=0.3)
    policy = ShardedPolicy(make_model(), group, torch.float32)
    backend = FsdpBackend(policy, objective, OptimizerConfig(lr=3e-3, warmup_steps=0), 40)
    losses = [backend.step(pack_pairs(rows, 64), count_targets(rows))["loss/policy"] for _ in range(25)]
    assert losses[0] == pytest.approx(math.log(2), rel=1e-5)
    assert losses[-1] < 0.1
    (packed,) = pack_pairs(rows, 4096)
    lengths = torch.unique_consecutive(packed.rows, return_counts=True)[1]
    ours, theirs = (
        torch.segment_reduce(one, "sum", lengths=lengths)
        for one in (backend.logprobs([packed])[0], reference(packed, 1.0)[0])
    )
    assert (preference_margin(ours[::2], ours[1::2], theirs[::2], theirs[1::2], 0.3) > 0).all()
