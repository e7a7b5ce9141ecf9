"""Invariant 12 names whose row it was: of the learner's own numbers too."""

from pathlib import Path

import numpy as np
import pytest
import torch
from probe_learner import GROUP_SIZE, REWARDS, VOCAB, built, rows_in, train

from services.learner_core import LearnerCore
from streamrl.config.learner_tables import AlgorithmConfig, CriticConfig, LearnerConfig, OptimizerConfig
from streamrl.config.schema import Config, ModelConfig
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


def embedding(core: LearnerCore) -> torch.nn.Module:
    (found,) = [module for name, module in core._policy.module.named_modules() if name.endswith("embed_tokens")]
    return found


@pytest.mark.parametrize("algorithm", [AlgorithmConfig(), AlgorithmConfig(advantage="gae")], ids=["grpo", "gae"])
def test_invariant_12_a_step_that_is_not_finite_names_a_row_its_replica_and_version(
    tmp_path: Path, algorithm: AlgorithmConfig
) -> None:
    config = config_of(algorithm)
    token, group, sample = token_of_one_row()

    def spoil(_module: object, ids: tuple[torch.Tensor], read: torch.Tensor) -> torch.Tensor:
        return read.masked_fill((ids[0] == token)[..., None], float("nan"))

    written = rows_in(config, tmp_path)
    with built(config, tmp_path) as core:
        before = core.weight_digest()
        embedding(core).register_forward_hook(spoil)
        whose = rf"learner step 1, .*a log-prob is nan in group {group}, sample {sample}, of rollout-0 under .* 0\)"
        with pytest.raises(NonFiniteError, match=whose):
            train(core, written, range(1))
        assert core.step == 0
        assert core.weight_digest() == before


def test_where_every_log_prob_is_finite_it_says_so(tmp_path: Path) -> None:
    def spoil(_module: object, _ids: object, read: torch.Tensor) -> None:
        if read.requires_grad:
            read.register_hook(lambda gradient: gradient * float("nan"))

    config = config_of(AlgorithmConfig())
    written = rows_in(config, tmp_path)
    with built(config, tmp_path) as core:
        embedding(core).register_forward_hook(spoil)
        with pytest.raises(NonFiniteError, match=r"grad/norm = nan.*\(the log-probs of this rank's rows are all fin"):
            train(core, written, range(1))
