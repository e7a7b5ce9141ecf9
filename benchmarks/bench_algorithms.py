"""Does every algorithm learn? Each advantage with each loss, on a small task, in one process, without Ray.

The task: after a prompt of one digit, sample its successor, four times. A policy of two layers samples under its own
weights, is scored by the share of right tokens, and takes optimizer steps on what it sampled: two on each batch, so
that the second is off policy and ratios, clips and weights have work to do. The figure is the mean reward of the last
steps less that of the first ones, over three seeds. `opd` has a teacher, which `grpo` with `ppo` made before. Under
`gdpo` each of the four tokens is a component; under `remax` the last rollout of each prompt is greedy, and in no
figure. Under `gae` and `prime` a second model, which begins as the policy, scores each batch and then learns from it.
What learns from data that nobody samples is in `algorithm_cases.supervised`, every choice beside advantage and loss in
`algorithm_cases.choices`.

    make bench-algorithms                               the whole table, some minutes
    make bench-algorithms ARGS=--quick                  one loss for each advantage, one advantage for each loss
    make bench-algorithms ARGS="--only 'correction *'"  rows with such names, in a record of their own
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from algorithm_cases.choices import choices
from algorithm_cases.supervised import supervised
from algorithm_cases.task import (
    ANSWER,
    GROUP_SIZE,
    PROMPTS,
    RATE,
    SEEDS,
    STEPS,
    batch,
    make_policy,
    prompts,
    right_tokens,
    sample,
)
from report import Report
from transformers.utils.logging import disable_progress_bar

from streamrl.algorithms.advantages.estimate import RewardedRows, advantages_of, baseline_rows
from streamrl.algorithms.losses import LOSSES, ROW_LOSSES, TEACHER_LOSSES
from streamrl.config import Config
from streamrl.config.schema import fields
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import CriticConfig, LearnerConfig, OptimizerConfig, PrimeConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.objectives import Reference, policy_loss
from streamrl.learner.optim.optimizer import clip_gradients, make_optimizer
from streamrl.reference_auxiliary import PlainAuxiliaryModel, make_plain_auxiliary_model
from streamrl.types import RolloutRows

ENDS = 10
"""Batches at either end of a run that make the figure."""
PRIME_RATE = OptimizerConfig(lr=6e-4, warmup_steps=0)
"""Gentler: the sum of a row's token rewards has no bound, and grows as long as their model learns."""
EVERY = "*"
WANTED = 0.2
"""Of the mean reward, which is 1 / 8 by chance and 1 at best."""
GENTLE = {"gspo": {"clip_low": 0.05, "clip_high": 0.05}, "gmpo": {"clip_low": 0.4, "clip_high": 0.4}}
BOUNDS = {"dppo": {"clip_low": 0.2, "clip_high": 0.2}, "clip_cov": {"cov_low": 0.0}}


@dataclass(frozen=True, slots=True)
class Run:
    """Rewards of each batch, and the policy that it ended with."""

    rewards: list[float]
    policy: PolicyModel

    @property
    def gain(self) -> float:
        return float(np.mean(self.rewards[-ENDS:]) - np.mean(self.rewards[:ENDS]))


def settings(advantage: str, loss: str) -> AlgorithmConfig:
    """What suits the loss: no two of its keys may contradict each other."""
    ratio = loss not in ("reinforce", *TEACHER_LOSSES)
    return AlgorithmConfig(
        advantage=advantage,
        components=dict.fromkeys("1234", 1.0) if advantage == "gdpo" else None,
        loss=loss,
        proximal="rollout" if ratio else "recompute",
        correction="none" if ratio else "tis",
        aggregation="seq_mean_token_mean" if loss in ROW_LOSSES else "token_mean",
        **GENTLE.get(loss, {}),
        **BOUNDS.get(loss, {}),
    )


def train(algorithm: AlgorithmConfig, seed: int, teacher: Reference | None = None) -> Run:
    """A run of one algorithm: a batch is sampled, and two steps are made of it."""
    policy, generator = make_policy(seed), torch.Generator().manual_seed(seed)
    optimizer = make_optimizer(policy.parameters(), RATE)
    config = configured(algorithm)
    auxiliary = make_auxiliary_model(policy, seed, config)
    greedy = baseline_rows(np.tile(np.arange(GROUP_SIZE), PROMPTS), config)
    rewards = []
    for step in range(STEPS):
        rows = sample(policy, prompts(generator), greedy, generator)
        rewards.append(float(rows.rewards[~greedy].mean()))
        advantages = advantages_of(judged(rows), config)
        rows = replace(rows, valid=~greedy)
        packed, total = batch(rows, advantages)
        if auxiliary is not None:
            (((packed,), total),) = mini_batches = auxiliary.add_advantages([([packed], total)], rows)
            auxiliary.learn(step, mini_batches)
        for _ in range(2):
            loss, _ = policy_loss(policy, packed, total, algorithm, 1.0, teacher)
            loss.backward()
            clip_gradients(list(policy.parameters()), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return Run(rewards, policy)


def configured(algorithm: AlgorithmConfig) -> Config:
    """The run, as far as rows, advantages and judges look at it."""
    critic, prime = CriticConfig(optimizer=RATE), PrimeConfig(optimizer=PRIME_RATE)
    learner = LearnerConfig(algorithm=algorithm, steps=STEPS, critic=critic, prime=prime)
    return Config(rollout=RolloutConfig(group_size=GROUP_SIZE), learner=learner)


def make_auxiliary_model(policy: PolicyModel, seed: int, config: Config) -> PlainAuxiliaryModel | None:
    """The second model that the advantage needs, if it needs one; it begins as the policy does."""
    if not (config.learner.algorithm.has_critic or config.learner.algorithm.has_implicit_rewards):
        return None
    with tempfile.TemporaryDirectory() as folder:
        policy.model.save_pretrained(folder)
        return make_plain_auxiliary_model(config, Path(folder), make_policy(seed))


def judged(rows: RolloutRows) -> RewardedRows:
    """What the estimators look at: of each row the share of right tokens, and each token by itself."""
    token_NT = rows.token_ids.reshape(rows.num_rows, ANSWER + 1)
    components = right_tokens(token_NT[:, 1:].astype(np.int64), token_NT[:, 0].astype(np.int64))
    lengths, cut_off = np.full(rows.num_rows, ANSWER), np.zeros(rows.num_rows, np.bool_)
    return RewardedRows(rows.rewards, rows.valid, rows.group, rows.sample_index, lengths, components, cut_off)


def pairs(quick: bool) -> Iterator[tuple[str, str]]:
    """Advantage and loss of each run that a configuration may have: a row's one ratio cannot take a token's own
    advantage. A loss that has no use for advantages runs once."""
    (named,) = (leaf.type for leaf in fields.leaves() if leaf.name == "learner.algorithm.advantage")
    advantages, losses = sorted(fields.literals(named)), sorted(set(LOSSES) - TEACHER_LOSSES)
    for advantage in advantages:
        for loss in losses:
            refused = loss in ROW_LOSSES and settings(advantage, loss).has_auxiliary_model
            if not refused and (not quick or advantage == "grpo" or loss == "ppo"):
                yield advantage, loss


def mean_gain(advantage: str, loss: str) -> float:
    """Over all seeds: sixty-four answers a step are few, and one run may be unlucky."""
    return statistics.fmean(train(settings(advantage, loss), seed).gain for seed in SEEDS)


def taught_gain(loss: str) -> float:
    """Of policies that learn from a teacher which begins elsewhere."""
    teacher = train(settings("grpo", "ppo"), len(SEEDS)).policy
    return statistics.fmean(train(settings("grpo", loss), seed, teacher).gain for seed in SEEDS)


def main(quick: bool, only: str) -> int:
    """The table; 0 if all learnt, 2 if it would be empty. only: a pattern of names, with `*`."""
    matched: list[str] = []

    def wanted(name: str) -> bool:
        if fnmatchcase(name, only):
            matched.append(name)
        return name in matched

    report = Report("algorithms" if only == EVERY else "algorithms-only")
    report.add("seeds that a figure is the mean of", len(SEEDS), "")
    for advantage, loss in pairs(quick):
        if wanted(name := f"{advantage} x {loss}"):
            report.add(name, mean_gain(advantage, loss), "reward", at_least=WANTED)
    for loss in sorted(TEACHER_LOSSES):
        if wanted(name := f"{loss}, of a teacher"):
            report.add(name, taught_gain(loss), "reward", at_least=WANTED)
    supervised(report, wanted)
    if not quick:
        choices(report, wanted)
    if not matched:
        print(f"no row's name matches {only!r}; 'grpo x *' and 'correction tis, *' match some", file=sys.stderr)
        return 2
    return report.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one loss for each advantage, and one advantage for each")
    parser.add_argument("--only", default=EVERY, metavar="PATTERN", help="rows whose names match it, with * for any")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    disable_progress_bar()
    sys.exit(main(arguments.quick, arguments.only))
