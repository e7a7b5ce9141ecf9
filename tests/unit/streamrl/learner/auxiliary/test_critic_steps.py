"""A step of policy and critic on one rank: the formulas in float64 over rows of several turns, value-only steps, exact
resumes, and values that are not finite."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from support.learner.slow_ppo import SlowPpo, SlowRow, pay
from support.learner.turns import make_model, make_turns
from transformers import PreTrainedModel

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import CriticConfig, OptimizerConfig
from streamrl.errors import DataError, NonFiniteError
from streamrl.learner.auxiliary.auxiliary import step_of_both
from streamrl.learner.auxiliary.kl_penalty import TokenDivergences, referred
from streamrl.learner.auxiliary.on_fsdp import critic_on_fsdp
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets, row_targets, select_rows
from streamrl.learner.batch.scored_batch import Part
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.model.value_model import HEAD, ShardedCritic, decoder_of
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.types import RolloutRows

TEMPERATURE = 0.9
STEPS = 40
OPTIMIZER = OptimizerConfig(lr=2e-3, eps=1e-4, warmup_steps=1, max_grad_norm=0.5)
CRITIC = CriticConfig(
    value_clip=0.02,
    gamma=0.95,
    policy_lambda=0.9,
    value_lambda=0.8,
    optimizer=OptimizerConfig(lr=4e-3, eps=1e-4, warmup_steps=1, max_grad_norm=0.7),
)
ALGORITHM = AlgorithmConfig(advantage="gae", proximal="recompute", clip_low=0.002, clip_high=0.003, tis_cap=1.1)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path_factory.mktemp("group") / "store", device=torch.device("cpu"))
    yield group
    group.close()


class Both:
    """A policy and its critic, as a learner rank has them."""

    def __init__(
        self, group: LearnerGroup, critic: CriticConfig = CRITIC, paid: tuple[str, float] | None = None
    ) -> None:
        self.policy: FsdpBackend = on_policy(
            ShardedPolicy(make_model(), group, torch.float32),
            optimizer=OPTIMIZER,
            algorithm=ALGORITHM,
            total_steps=STEPS,
            temperature=TEMPERATURE,
            idle_steps=critic.warmup_steps,
        )
        self.model = ShardedCritic(decoder_of(make_model()), group, torch.float32)
        divergences = None
        if paid is not None:
            reference = FrozenPolicy(other_model, group, torch.float32)
            asked = partial(referred, reference, temperature=TEMPERATURE, group=group)
            divergences = TokenDivergences(asked, *paid, group)
        self.critic = critic_on_fsdp(self.model, critic, STEPS, divergences=divergences)

    def step(self, rows: RolloutRows, mini_batches: int = 1, epochs: int = 1) -> dict[str, float]:
        cut, parts = cut_of(rows, mini_batches)
        return step_of_both(self.policy, self.critic, cut, [[part] for part in parts], epochs)

    def load(self, other: "Both") -> None:
        tensors = {name: tensor.clone() for name, tensor in other.policy.state_tensors()}
        tensors |= {name: tensor.clone() for name, tensor in other.critic.state_tensors()}
        self.policy.load_state(tensors.__getitem__, other.policy.state_extra())
        self.critic.load_state(tensors.__getitem__, other.critic.state_extra())


def other_model() -> PreTrainedModel:
    """What the policy is held to: of other weights."""
    return make_model(hidden_size=32)


def cut_of(rows: RolloutRows, mini_batches: int) -> tuple[list[MiniBatch], list[Part]]:
    number_N = mini_batch_of(rows.group, mini_batches)
    places = [np.flatnonzero(number_N == number) for number in range(mini_batches)]
    parts = [Part(select_rows(rows, own), own) for own in places]
    return [MiniBatch([pack(part, np.zeros(part.num_rows), 40)], count_targets(part)) for part, _ in parts], parts


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("mini_batches", "epochs"), [(1, 1), (3, 2)])
@pytest.mark.parametrize(
    "changes", [{}, {"length_alpha": 0.4, "policy_lambda": 1.0}, {"whiten": False}, {"value_clip": None}]
)
def test_a_step_is_the_formulas_in_float64_over_rows_of_several_turns(
    group: LearnerGroup, seed: int, mini_batches: int, epochs: int, changes: dict[str, float | None]
) -> None:
    print(f"seed {seed}")
    critic = CriticConfig(**{**{name: getattr(CRITIC, name) for name in CRITIC.__struct_fields__}, **changes})
    both, rows = Both(group, critic), make_turns(seed, step=0)
    # A head that is not zero: else the first values, and the decoder's first gradient, would be.
    head = torch.linspace(-0.3, 0.3, 24)
    with torch.no_grad():
        both.model.shards[HEAD].copy_(head[None])
    slow = SlowPpo(make_model(), decoder_of(make_model()), ALGORITHM, critic)
    slow.head.data.copy_(head)
    metrics = both.step(rows, mini_batches, epochs)
    number_N = mini_batch_of(rows.group, mini_batches)
    scored = [
        [SlowRow(rows, row) for row in np.flatnonzero((number_N == number) & rows.valid)]
        for number in range(mini_batches)
    ]
    slow.step(scored, OPTIMIZER, TEMPERATURE, epochs)
    for name, param in slow.policy.named_parameters():
        torch.testing.assert_close(both.policy.policy.shards[name].detach(), param.float().detach(), rtol=0, atol=3e-6)
    for name, param in slow.decoder.named_parameters():
        torch.testing.assert_close(both.model.shards[name].detach(), param.float().detach(), rtol=0, atol=3e-6)
    torch.testing.assert_close(both.model.shards[HEAD][0].detach(), slow.head.float().detach(), rtol=0, atol=3e-6)
    values = np.array([value for part in scored for row in part for value in row.values])
    returns = np.array([one for part in scored for row in part for one in row.returns])
    assert metrics["critic/value_mean"] == pytest.approx(values.mean(), abs=1e-6)
    explained = 1.0 - (returns - values).var() / returns.var()
    assert metrics["critic/explained_variance"] == pytest.approx(explained, abs=1e-5)
    if epochs > 1 and critic.value_clip is not None:
        assert metrics["critic/clip_fraction"] > 0.0, "no value came to its bound: nothing was tested"
    if epochs > 1:
        assert metrics["ratio/clip_fraction"] > 0.0, "no ratio came to its bound: nothing was tested"


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("mini_batches", [1, 3])
def test_each_token_pays_its_divergence_from_the_reference(
    group: LearnerGroup, estimator: str, mini_batches: int
) -> None:
    both, rows, coef = Both(group, paid=(estimator, 0.3)), make_turns(3, step=0), 0.3
    free = Both(group)
    slow = SlowPpo(make_model(), decoder_of(make_model()), ALGORITHM, CRITIC)
    number_N = mini_batch_of(rows.group, mini_batches)
    scored = [
        [SlowRow(rows, row) for row in np.flatnonzero((number_N == number) & rows.valid)]
        for number in range(mini_batches)
    ]
    mean = pay([row for part in scored for row in part], other_model(), estimator, coef, TEMPERATURE)
    metrics = both.step(rows, mini_batches)
    slow.step(scored, OPTIMIZER, TEMPERATURE, 1)
    for name, param in slow.policy.named_parameters():
        torch.testing.assert_close(both.policy.policy.shards[name].detach(), param.float().detach(), rtol=0, atol=3e-6)
    torch.testing.assert_close(both.model.shards[HEAD][0].detach(), slow.head.float().detach(), rtol=0, atol=3e-6)
    assert metrics["reward/kl"] == pytest.approx(mean, rel=1e-5)
    assert "reward/kl" not in free.step(rows, mini_batches)
    assert both.policy.weight_digest() != free.policy.weight_digest()


def test_a_critic_that_learned_nothing_values_all_at_0_and_learns_the_rewards(group: LearnerGroup) -> None:
    both, rows = Both(group, CriticConfig(optimizer=CRITIC.optimizer)), make_turns(4, step=0)
    first = both.step(rows)
    assert first["critic/value_mean"] == 0.0
    assert first["critic/explained_variance"] == 0.0
    scores = np.repeat(rows.rewards, row_targets(rows))
    assert first["critic/loss"] == pytest.approx(0.5 * (scores**2).mean(), rel=1e-6)
    later = [both.step(rows) for _ in range(30)][-1]
    assert later["critic/explained_variance"] > 0.5
    assert later["critic/loss"] < 0.5 * first["critic/loss"]


def test_steps_of_the_critic_alone_leave_the_policy_as_it_is_and_its_rate_begins_behind_them(
    group: LearnerGroup,
) -> None:
    both, rows = Both(group, CriticConfig(warmup_steps=3, optimizer=CRITIC.optimizer)), make_turns(5, step=0)
    before, heads, rates = both.policy.weight_digest(), [], []
    for step in range(3):
        metrics = both.step(rows, 2, 2)
        assert both.policy.weight_digest() == before
        assert both.policy.steps_done == step + 1
        assert (metrics["loss/policy"], metrics["grad/norm"]) == (0.0, 0.0)
        heads.append(both.model.shards[HEAD].detach().clone())
        rates.append(metrics["critic/lr"])
    assert not torch.equal(heads[0], heads[1])
    metrics = both.step(rows, 2, 2)
    assert metrics["learner/lr"] == OPTIMIZER.lr
    assert metrics["learner/lr"] > 0.0
    assert both.policy.weight_digest() != before
    assert rates[0] == CRITIC.optimizer.lr > rates[1] > rates[2]


@pytest.mark.parametrize("before", [0, 1, 2, 5])
def test_a_resumed_pair_goes_on_to_the_bit_in_and_behind_the_steps_of_the_critic_alone(
    group: LearnerGroup, before: int
) -> None:
    critic = CriticConfig(warmup_steps=2, optimizer=CRITIC.optimizer)
    both, resumed = Both(group, critic), Both(group, critic)
    for step in range(before):
        both.step(make_turns(6, step, step=step), 2, 2)
    resumed.load(both)
    for step in range(before, before + 3):
        rows = make_turns(6, step, step=step)
        first, second = (one.step(rows, 2, 2) for one in (both, resumed))
        times = {"time/forward_backward", "time/optimizer"}
        assert {k: v for k, v in first.items() if k not in times} == {k: v for k, v in second.items() if k not in times}
        assert both.policy.weight_digest() == resumed.policy.weight_digest()
        assert both.model.weight_digest() == resumed.model.weight_digest()


def test_a_state_without_a_critic_is_refused(group: LearnerGroup) -> None:
    with pytest.raises(DataError, match=r"has no critic.*of a run with another advantage"):
        Both(group).critic.load_state(lambda _name: torch.zeros(0), None)


def test_invariant_12_a_value_that_is_not_finite_names_the_row_its_replica_and_version_and_changes_nothing(
    group: LearnerGroup,
) -> None:
    both, rows = Both(group), make_turns(7, step=9, lag=2)
    bad = int(np.flatnonzero(rows.valid)[3])
    # One row alone has the token of which the embedding is not a number.
    rows.token_ids[rows.token_ids == 18] = 0
    rows.token_ids[rows.offsets[bad]] = 18
    with torch.no_grad():
        both.model.shards["embed_tokens.weight"][18] = float("nan")
    before = both.policy.weight_digest()
    whose = rf"nan in group {rows.group[bad]}, sample {rows.sample_index[bad]}, of {rows.replica[bad]} under .* 7"
    with pytest.raises(NonFiniteError, match=whose):
        both.step(rows)
    assert both.policy.weight_digest() == before
    assert both.policy.steps_done == 0


def test_rows_on_which_nothing_is_trained_leave_a_step_without_values(group: LearnerGroup) -> None:
    rows = make_turns(8, step=0)
    nothing = replace(rows, valid=np.zeros(rows.num_rows, bool), rewards=np.full(rows.num_rows, np.nan))
    metrics = Both(group).step(nothing)
    assert metrics["critic/loss"] == metrics["critic/value_mean"] == 0.0
    assert "critic/explained_variance" not in metrics
