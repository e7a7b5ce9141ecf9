"""Invariant 12 names whose row it was: of the learner's own numbers too."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.learner.probe_learner import GROUP_SIZE, REWARDS, VOCAB, built, rows_in, train

from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import CriticConfig, LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.errors import NonFiniteError

OPTIMIZER = OptimizerConfig(lr=1e-3, warmup_steps=1)


def config_of(algorithm: AlgorithmConfig) -> Config:
    critic = CriticConfig(optimizer=OPTIMIZER)
    learner = LearnerConfig(steps=3, optimizer=OPTIMIZER, algorithm=algorithm, critic=critic)
    return Config(model=ModelConfig(preset="tiny-qwen3"), learner=learner)


def ids_of(group: int, sample: int) -> np.ndarray:
    """What `probe_learner.finished` draws."""
    return np.random.default_rng([group, sample]).integers(3, VOCAB, 2 + sample)


def token_of_one_row() -> tuple[int, int, int]:
    """(token, group, sample): of a row with an advantage, in which the token is read, and it is in no other."""
    rows = [divmod(row, GROUP_SIZE) for row in range(len(REWARDS))]
    for place, (group, sample) in enumerate(rows):
        others = np.concatenate([ids_of(*row) for row in rows if row != (group, sample)])
        own = set(ids_of(group, sample)[:-1]) - set(others) - set(range(3 + 3 + group))
        if own and REWARDS[place] != REWARDS.reshape(-1, GROUP_SIZE)[group].mean():
            return min(own), group, sample
    raise AssertionError("there is none")


def embedding(model: torch.nn.Module) -> torch.nn.Module:
    (found,) = [module for name, module in model.named_modules() if name.endswith("embed_tokens")]
    return found


def spoil_where(model: torch.nn.Module, token: int) -> None:
    """Let a model have no number for what it reads of a token."""

    def spoil(_module: object, ids: tuple[torch.Tensor], read: torch.Tensor) -> torch.Tensor:
        return read.masked_fill((ids[0] == token)[..., None], float("nan"))

    embedding(model).register_forward_hook(spoil)


def spoil_gradients(model: torch.nn.Module) -> None:
    """Let a model have none for its gradient, all else being finite."""

    def spoil(_module: object, _ids: object, read: torch.Tensor) -> None:
        if read.requires_grad:
            read.register_hook(lambda gradient: gradient * float("nan"))

    embedding(model).register_forward_hook(spoil)


@pytest.mark.parametrize("algorithm", [AlgorithmConfig(), AlgorithmConfig(advantage="gae")], ids=["grpo", "gae"])
def test_invariant_12_a_step_that_is_not_finite_names_a_row_its_replica_and_version(
    tmp_path: Path, algorithm: AlgorithmConfig
) -> None:
    config = config_of(algorithm)
    token, group, sample = token_of_one_row()
    written = rows_in(config, tmp_path)
    with built(config, tmp_path) as core:
        before = core.weight_digest()
        spoil_where(core._policy.module, token)
        whose = rf"learner step 1, .*a log-prob is nan in group {group}, sample {sample}, of rollout-0 under .* 0\)"
        with pytest.raises(NonFiniteError, match=whose):
            train(core, written, range(1))
        assert core.step == 0
        assert core.weight_digest() == before


HELD = AlgorithmConfig(kl_coef=0.1)
TAUGHT = AlgorithmConfig(loss="opd", proximal="recompute")
PAID = AlgorithmConfig(kl_coef=0.1, kl_in="reward", kl_estimator="k3")
PAID_BY_TOKEN = AlgorithmConfig(advantage="gae", kl_coef=0.1, kl_in="reward", kl_estimator="k1")
IN_THE_LOSS = r"update 1: .*loss/policy = nan; this update was not applied\. .*\(a log-prob of the reference is nan"
BEFORE_IT = r"a log-prob of the reference is not finite: nan"


@pytest.mark.parametrize(
    ("algorithm", "what"),
    [(HELD, IN_THE_LOSS), (TAUGHT, IN_THE_LOSS), (PAID, BEFORE_IT), (PAID_BY_TOKEN, BEFORE_IT)],
    ids=["in the loss", "a teacher's", "in rewards of rows", "in rewards of tokens"],
)
def test_invariant_12_a_log_prob_of_the_reference_that_is_not_finite_names_its_row_too(
    tmp_path: Path, algorithm: AlgorithmConfig, what: str
) -> None:
    config = config_of(algorithm)
    token, group, sample = token_of_one_row()
    written = rows_in(config, tmp_path)
    with built(config, tmp_path) as core:
        before = core.weight_digest()
        spoil_where(core._referred_at.args[0].sharded().module, token)
        whose = rf"^learner step 1[,:] {what} in group {group}, sample {sample}, of rollout-0 under .* 0\b"
        with pytest.raises(NonFiniteError, match=whose):
            train(core, written, range(1))
        assert core.step == 0
        assert core.weight_digest() == before


def test_where_every_log_prob_is_finite_it_says_so(tmp_path: Path) -> None:
    config = config_of(AlgorithmConfig(kl_coef=0.1))
    written = rows_in(config, tmp_path)
    with built(config, tmp_path) as core:
        spoil_gradients(core._policy.module)
        all_finite = r"\(the log-probs of this rank's rows are all finite, and so are the reference's\)"
        with pytest.raises(NonFiniteError, match=rf"grad/norm = nan.*{all_finite}"):
            train(core, written, range(1))


def test_an_update_of_the_critic_that_is_not_finite_is_not_said_to_have_left_the_policy_as_it_was(
    tmp_path: Path,
) -> None:
    config = config_of(AlgorithmConfig(advantage="gae"))
    written = rows_in(config, tmp_path)
    with built(config, tmp_path) as core:
        before, values = core.weight_digest(), core._auxiliary._backend.policy.weight_digest()
        spoil_gradients(core._auxiliary._backend.policy.module)
        with pytest.raises(NonFiniteError, match="grad/norm = nan; this update was not applied") as caught:
            train(core, written, range(1))
        assert "nothing" not in str(caught.value)
        assert "of the critic, behind the policy's of this step; its rate is learner.critic.optimizer.lr" in str(
            caught.value
        )
        assert core.weight_digest() != before
        assert core._auxiliary._backend.policy.weight_digest() == values
