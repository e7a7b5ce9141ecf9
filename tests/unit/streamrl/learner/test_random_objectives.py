"""The objective under choices that are drawn at random, against one token at a time in double precision.

Proximal, correction, rejection, their levels, aggregation, loss, divergence, entropy and the number of updates are
independent keys; each draw is a combination of them that no rule of the configuration refuses, a random ragged batch
and a random cut of it into packs and shares.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from support.learner.slow_objective import SLOW_LOSSES, TokenTable, slow_loss, slow_rows

from streamrl.algorithms.losses import LOSSES
from streamrl.config.rules.run import check_rules
from streamrl.config.schema.algorithm import AlgorithmConfig, ReferenceConfig, RejectionConfig
from streamrl.config.schema.fields import leaves, literals
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets, select_rows
from streamrl.learner.objectives import Objective, policy_loss
from streamrl.models.load import prepare_model_folder
from streamrl.types import RolloutRows

STEP = 5
"""The step that is trained; tokens are of steps 0 to 5."""
DRAWS = 80
"""Of each loss."""
OF_A_PACK = ("clip_cov", "kl_cov")
"""Losses that look at all tokens of a pack: equal to the slow form where all rows are in one."""
BOUNDS = {"ratio": (0.6, 1.6), "k1": (-0.4, 0.5), "k2": (0.001, 0.1), "k3": (0.001, 0.1)}
NAMES = {leaf.name.removeprefix("learner.algorithm."): sorted(literals(leaf.type)) for leaf in leaves()}
"""What a key may be, of those with names."""
CHOICES = ("proximal", "correction", "correction_level", "aggregation")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, tmp_path_factory.mktemp("models") / "teacher")


class Draw(NamedTuple):
    """seed: of the batch, its policies and its cut."""

    config: Config
    seed: int

    @property
    def algorithm(self) -> AlgorithmConfig:
        return self.config.learner.algorithm


def drawn_rejection(random: np.random.Generator) -> RejectionConfig:
    measure, level = random.choice(NAMES["rejection.measure"]), random.choice(NAMES["rejection.level"])
    low, high = BOUNDS.get(measure, (None, None))
    sides = random.random(2) < 0.7
    return RejectionConfig(str(measure), str(level), low if sides[0] else None, high if sides[1] else None)


def drawn(loss: str, random: np.random.Generator, teacher: Path) -> Config:
    """Any combination, whether it has a sense or not."""

    def one_of(*values: object) -> object:
        return values[random.integers(len(values))]

    algorithm = AlgorithmConfig(
        loss=loss,
        advantage="reinforce_pp",
        dual_clip=one_of(None, 1.6),
        divergence=one_of("tv", "kl"),
        clip_low=one_of(0.1, 0.2),
        clip_high=one_of(0.15, 0.28),
        cov_share=0.2,
        cov_low=0.0,
        cov_high=0.8,
        cov_kl=0.7,
        tis_cap=one_of(1.3, 2.0),
        horizon=one_of(1, 9),
        entropy_coef=one_of(0.0, 0.3),
        kl_coef=one_of(0.0, 0.0, 0.25),
        kl_estimator=one_of("k2", "k3", "k1+", "k3+"),
        reference=ReferenceConfig("path", str(teacher)) if loss == "opd" else ReferenceConfig(),
        rejection=drawn_rejection(random),
        **{key: str(random.choice(NAMES[key])) for key in CHOICES},
    )
    learner = LearnerConfig(algorithm=algorithm, mini_batches=one_of(1, 2))
    return Config(model=ModelConfig(preset="tiny-qwen3"), learner=learner)


def draws(loss: str, teacher: Path, count: int = DRAWS) -> Iterator[Draw]:
    """Those that no rule refuses."""
    for seed in range(count):
        print(f"loss {loss}, seed {seed}")
        random = np.random.default_rng([sorted(LOSSES).index(loss), seed])
        config = drawn(loss, random, teacher)
        while check_rules(config):
            config = drawn(loss, random, teacher)
        yield Draw(config, seed)


def batch_of(seed: int) -> tuple[RolloutRows, np.ndarray]:
    """Prompts, turns of an environment, failed rows, rows of one token and without a sampled one. Advantages are of
    few bits, so that means of equal ones are equal to them."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, int(random.integers(1, 10)))
    count = int(lengths.sum())
    rows = RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        token_ids=random.integers(0, 5, count).astype(np.int32),
        token_origin=random.choice([0, 1, 1, 1, 2], count).astype(np.uint8),
        rollout_logprobs=(-0.5 - np.arange(count) / 64).astype(np.float32),
        token_steps=random.integers(0, STEP + 1, count),
        group=np.arange(len(lengths)),
        sample_index=np.zeros(len(lengths), np.int64),
        rewards=np.zeros(len(lengths)),
        valid=random.random(len(lengths)) > 0.2,
    )
    return rows, np.where(rows.valid, random.integers(-16, 17, len(lengths)) / 8, 0.0)


def packs_of(rows: RolloutRows, advantages: np.ndarray, draw: Draw) -> Iterator[PackedBatch]:
    """A random cut into shares, and of each into packs."""
    random = np.random.default_rng([draw.seed, 1])
    shares = 1 if draw.algorithm.loss in OF_A_PACK else int(random.integers(1, 4))
    for share in range(shares):
        mine = np.arange(share, rows.num_rows, shares)
        budget = 4096 if draw.algorithm.loss in OF_A_PACK else int(random.integers(8, 40))
        yield from pack(select_rows(rows, mine), advantages[mine], budget, step=STEP)


def run(
    objective: Objective, packs: Iterator[PackedBatch], rows: RolloutRows, policy: TokenTable, before: TokenTable | None
) -> float:
    """The loss over all packs; gradients stay at the policy."""
    loss = 0.0
    for packed in packs:
        start = None if before is None else before(packed, 1.0)[0].detach()
        part, _ = objective(policy, replace(packed, start_logprobs=start), count_targets(rows))
        part.backward()
        loss += part.item()
    return loss


def gradients(policy: TokenTable) -> list[torch.Tensor]:
    """By each token's log-prob and entropy; 0 where nothing depends on it."""
    found = [policy.logprobs, policy.entropies]
    return [torch.zeros_like(one) if one.grad is None else one.grad for one in found]


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_the_loss_is_that_of_one_token_at_a_time_under_every_combination_of_choices(loss: str, teacher: Path) -> None:
    for draw in draws(loss, teacher):
        print(draw.algorithm, "mini-batches", draw.config.learner.mini_batches)
        rows, advantages = batch_of(draw.seed)
        policy, plain, reference = TokenTable(rows, 1), TokenTable(rows, 1), TokenTable(rows, 2)
        before = TokenTable(rows, 3) if draw.config.learner.mini_batches > 1 else None
        objective = partial(policy_loss, algorithm=draw.algorithm, temperature=1.0, reference=reference)
        got = run(objective, packs_of(rows, advantages, draw), rows, policy, before)
        expected = slow_loss(slow_rows(rows, advantages, STEP, plain, before, reference), draw.algorithm)
        assert got == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
        if expected.requires_grad:
            expected.backward()
        for mine, theirs in zip(gradients(policy), gradients(plain), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-8)
        assert reference.logprobs.grad is None


def test_the_draws_have_every_choice_and_every_pair_of_a_correction_and_a_level(teacher: Path) -> None:
    seen = [draw.algorithm for loss in sorted(LOSSES) for draw in draws(loss, teacher)]
    for key in CHOICES:
        assert {getattr(one, key) for one in seen} == set(NAMES[key])
    for one, other in (("correction", "correction_level"), ("rejection.measure", "rejection.level")):
        pairs = Counter((value_of(algorithm, one), value_of(algorithm, other)) for algorithm in seen)
        assert set(pairs) == {(first, second) for first in NAMES[one] for second in NAMES[other]}
        assert min(pairs.values()) > 5
    assert set(SLOW_LOSSES) == set(LOSSES)


def value_of(algorithm: AlgorithmConfig, key: str) -> str:
    """Of a key, which may be of the table `rejection`."""
    table, _, name = key.rpartition(".")
    return getattr(algorithm.rejection if table else algorithm, name)
