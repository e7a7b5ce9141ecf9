"""A step of policy and implicit reward model on one rank: the formulas in float64 over rows of several turns in groups
of unequal size, exact resumes, and rewards that are not finite."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.learner.routed import routed_model, routed_rows
from support.learner.slow_ppo import SlowRow
from support.learner.slow_prime import SlowPrime
from support.learner.turns import make_model, make_turns
from transformers import Qwen3ForCausalLM

from streamrl.algorithms.advantages.outcome import advantage_of
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import OptimizerConfig, PrimeConfig
from streamrl.errors import DataError, NonFiniteError
from streamrl.learner.auxiliary.auxiliary import step_of_both
from streamrl.learner.auxiliary.on_fsdp import implicit_rewards_on_fsdp
from streamrl.learner.batch.mini_batch_cut import mini_batch_of
from streamrl.learner.batch.mini_batches import MiniBatch
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets, row_targets, select_rows
from streamrl.learner.batch.scored_batch import Part
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.learner.references.frozen import FrozenPolicy
from streamrl.types import RolloutRows

TEMPERATURE = 0.9
STEPS = 40
OPTIMIZER = OptimizerConfig(lr=2e-3, eps=1e-4, warmup_steps=1, max_grad_norm=0.5)
RATE = OptimizerConfig(lr=4e-3, eps=1e-4, warmup_steps=1, max_grad_norm=0.3)
PRIME = PrimeConfig(beta=0.7, optimizer=RATE)
ALGORITHM = AlgorithmConfig(advantage="prime", proximal="recompute", clip_low=0.002, clip_high=0.003, tis_cap=1.1)
TIMES = {"time/forward_backward", "time/optimizer"}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnerGroup]:
    group = open_group(0, 1, tmp_path_factory.mktemp("group") / "store", device=torch.device("cpu"))
    yield group
    group.close()


def make_reference(distance: float, tied: bool = True) -> Qwen3ForCausalLM:
    """The model that all begin with, each weight moved by about so much."""
    model, generator = make_model(tied=tied), torch.Generator().manual_seed(9)
    with torch.no_grad():
        for param in model.parameters():
            param += distance * torch.randn(param.shape, generator=generator)
    return model


class Both:
    """A policy and its implicit reward model, as a learner rank has them."""

    def __init__(
        self, group: LearnerGroup, prime: PrimeConfig = PRIME, distance: float = 0.0, tied: bool = True
    ) -> None:
        self.policy: FsdpBackend = on_policy(
            ShardedPolicy(make_model(), group, torch.float32),
            optimizer=OPTIMIZER,
            algorithm=ALGORITHM,
            total_steps=STEPS,
            temperature=TEMPERATURE,
        )
        self.model = ShardedPolicy(make_model(tied=tied), group, torch.float32)
        reference = FrozenPolicy(lambda: make_reference(distance, tied), group, torch.float32)
        self.auxiliary = implicit_rewards_on_fsdp(self.model, reference, prime, STEPS)

    def step(self, rows: RolloutRows, mini_batches: int = 1, epochs: int = 1) -> dict[str, float]:
        return step_of_both(self.policy, self.auxiliary, *cut_of(rows, mini_batches), epochs)

    def load(self, other: "Both") -> None:
        tensors = {name: tensor.clone() for name, tensor in other.policy.state_tensors()}
        tensors |= {name: tensor.clone() for name, tensor in other.auxiliary.state_tensors()}
        self.policy.load_state(tensors.__getitem__, other.policy.state_extra())
        self.auxiliary.load_state(tensors.__getitem__, other.auxiliary.state_extra())


def cut_of(rows: RolloutRows, mini_batches: int) -> tuple[list[MiniBatch], list[list[Part]]]:
    outcomes_N = advantage_of("prime", rows.rewards, rows.valid, rows.group, row_targets(rows))
    number_N = mini_batch_of(rows.group, mini_batches)
    places = [np.flatnonzero(number_N == number) for number in range(mini_batches)]
    parts = [Part(select_rows(rows, own), own) for own in places]
    packs = [pack(part.rows, outcomes_N[part.places], 60) for part in parts]
    cut = [MiniBatch([own], count_targets(part.rows)) for own, part in zip(packs, parts, strict=True)]
    return cut, [[part] for part in parts]


def changed(**changes: float | bool) -> PrimeConfig:
    return PrimeConfig(**{**{name: getattr(PRIME, name) for name in PRIME.__struct_fields__}, **changes})


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("mini_batches", "epochs"), [(1, 1), (3, 2)])
@pytest.mark.parametrize(
    "changes", [{}, {"gamma": 0.9, "process_coef": 2.0, "outcome_coef": 0.5}, {"normalise": True}, {"whiten": True}]
)
def test_a_step_is_the_formulas_in_float64_over_rows_of_several_turns(
    group: LearnerGroup, seed: int, mini_batches: int, epochs: int, changes: dict[str, float | bool]
) -> None:
    print(f"seed {seed}")
    prime, rows = changed(**changes), make_turns(seed, step=0, group_size=4)
    both = Both(group, prime, distance=0.05)
    slow = SlowPrime(make_model(), make_model(), make_reference(0.05), ALGORITHM, prime)
    number_N = mini_batch_of(rows.group, mini_batches)
    scored = [
        [SlowRow(rows, row) for row in np.flatnonzero((number_N == number) & rows.valid)]
        for number in range(mini_batches)
    ]
    every = [row for part in scored for row in part]
    assert len({[row.group for row in every].count(row.group) for row in every}) > 1, "groups are of equal size"
    sums = np.array([slow.rewards(row).sum().item() for row in every])
    first = slow.auxiliary_loss(every).item()
    metrics = both.step(rows, mini_batches, epochs)
    slow.step(scored, OPTIMIZER, TEMPERATURE, epochs)
    for name, param in slow.policy.named_parameters():
        torch.testing.assert_close(both.policy.policy.shards[name].detach(), param.float().detach(), rtol=0, atol=3e-6)
    for name, param in slow.model.named_parameters():
        torch.testing.assert_close(both.model.shards[name].detach(), param.float().detach(), rtol=0, atol=3e-6)
    tokens = sum(len(row.places) for row in every)
    outcomes = np.array([row.score for row in every])
    agrees = (1.0 + np.sign(sums) * np.sign(outcomes - 0.5)) / 2.0
    assert metrics["prime/reward_mean"] == pytest.approx(sums.sum() / tokens, abs=1e-6)
    assert metrics["prime/accuracy"] == agrees.mean()
    if epochs > 1:
        assert metrics["ratio/clip_fraction"] > 0.0, "no ratio came to its bound: nothing was tested"
    else:
        assert metrics["prime/loss"] == pytest.approx(first, rel=1e-5)
        assert metrics["prime/row_reward_abs_max"] == pytest.approx(np.abs(sums).max(), rel=1e-5)


def test_a_model_that_learned_nothing_rewards_no_token_and_leaves_the_outcomes(group: LearnerGroup) -> None:
    both, rows = Both(group), make_turns(4, step=0, group_size=4)
    mini_batches, parts = cut_of(rows, 2)
    judged, facts = both.auxiliary.add_advantages(mini_batches, parts)
    assert (facts["prime/accuracy"], facts["prime/reward_mean"]) == (0.5, 0.0)
    before, after = (
        torch.cat([one.advantages for mini_batch in cut for one in mini_batch.shares[0]])
        for cut in (mini_batches, judged)
    )
    assert torch.equal(before, after)
    assert after.count_nonzero() > 0


@pytest.mark.long
def test_it_learns_which_rows_are_right(group: LearnerGroup) -> None:
    both, rows = Both(group), make_turns(4, step=0, group_size=4)
    rows = replace(rows, rewards=np.round(rows.rewards - 0.01))
    first = both.step(rows)
    assert first["prime/loss"] == pytest.approx(np.log(2.0), rel=1e-6)
    later = [both.step(rows) for _ in range(25)][-1]
    assert later["prime/accuracy"] > 0.9
    assert later["prime/loss"] < 0.5 * first["prime/loss"]


def test_a_batch_is_rewarded_by_the_weights_that_the_step_before_left(group: LearnerGroup) -> None:
    """A model that had learned the batch's outcomes first would tell them rather than foresee them."""
    both, rows = Both(group), make_turns(5, step=0, group_size=4)
    metrics = both.step(rows, 2, 2)
    assert metrics["prime/reward_mean"] == 0.0
    assert metrics["prime/grad_norm"] > 0.0
    assert both.step(rows, 2, 2)["prime/reward_mean"] != 0.0


@pytest.mark.parametrize("before", [0, 1, 4])
def test_a_resumed_pair_goes_on_to_the_bit(group: LearnerGroup, before: int) -> None:
    both, resumed = Both(group), Both(group)
    for step in range(before):
        both.step(make_turns(6, step, step=step), 2, 2)
    resumed.load(both)
    for step in range(before, before + 3):
        rows = make_turns(6, step, step=step)
        first, second = (one.step(rows, 2, 2) for one in (both, resumed))
        assert {k: v for k, v in first.items() if k not in TIMES} == {k: v for k, v in second.items() if k not in TIMES}
        assert both.policy.weight_digest() == resumed.policy.weight_digest()
        assert both.model.weight_digest() == resumed.model.weight_digest()


def test_a_state_without_an_implicit_reward_model_is_refused(group: LearnerGroup) -> None:
    with pytest.raises(DataError, match=r'has no implicit reward model.*"prime" needs one'):
        Both(group).auxiliary.load_state(lambda _name: torch.zeros(0), None)


def test_invariant_12_a_reward_that_is_not_finite_names_the_row_its_replica_and_version_and_changes_nothing(
    group: LearnerGroup,
) -> None:
    both, rows = Both(group, tied=False), make_turns(7, step=9, lag=2)
    bad = int(np.flatnonzero(rows.valid)[3])
    # One row alone has the token of which the embedding is not a number; a head that were tied to it would give no
    # number to any row.
    rows.token_ids[rows.token_ids == 18] = 0
    rows.token_ids[rows.offsets[bad]] = 18
    with torch.no_grad():
        both.model.shards["model.embed_tokens.weight"][18] = float("nan")
    before = both.policy.weight_digest()
    whose = rf"in group {rows.group[bad]}, sample {rows.sample_index[bad]}, of {rows.replica[bad]} under .* 7"
    told = rf"implicit reward model is not finite: nan {whose}.*learner.prime.optimizer"
    with pytest.raises(NonFiniteError, match=told):
        both.step(rows)
    assert both.policy.weight_digest() == before
    assert both.policy.steps_done == 0


def test_rows_on_which_nothing_is_trained_leave_a_step_without_rewards(group: LearnerGroup) -> None:
    rows = make_turns(8, step=0)
    nothing = replace(rows, valid=np.zeros(rows.num_rows, bool), rewards=np.full(rows.num_rows, np.nan))
    metrics = Both(group).step(nothing)
    assert metrics["prime/loss"] == metrics["prime/row_reward_abs_max"] == 0.0
    assert not {"prime/accuracy", "prime/reward_mean"} & set(metrics)


def test_figures_of_routers_are_the_policys_and_those_of_the_reward_models_are_behind_its_name(
    group: LearnerGroup,
) -> None:
    rows = routed_rows(routed_model())
    mini_batches, parts = cut_of(rows, 1)
    settings = {"optimizer": OPTIMIZER, "algorithm": ALGORITHM, "total_steps": STEPS, "temperature": TEMPERATURE}
    policy = on_policy(ShardedPolicy(routed_model(), group, torch.float32), **settings)
    reference = FrozenPolicy(lambda: routed_model(undecided=True), group, torch.float32)
    judge = ShardedPolicy(routed_model(undecided=True), group, torch.float32)
    both = step_of_both(policy, implicit_rewards_on_fsdp(judge, reference, PRIME, STEPS), mini_batches, parts, 1)
    alone = on_policy(ShardedPolicy(routed_model(), group, torch.float32), **settings).step_batch(mini_batches)
    figures = {name for name in alone if name.startswith("router/")}
    assert figures
    assert {name: both[name] for name in figures} == {name: alone[name] for name in figures}
    assert both["prime/router/entropy"] > both["router/entropy"]
