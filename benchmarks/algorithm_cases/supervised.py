"""Rows of the algorithms' table that learn from data which nobody samples: demonstrations, and pairs of which one was
preferred."""

from collections.abc import Callable
from statistics import fmean

import numpy as np
import torch
from report import Report
from torch import nn

from algorithm_cases.task import (
    ANSWER,
    DIGITS,
    GROUP_SIZE,
    PROMPTS,
    RATE,
    SEEDS,
    STEPS,
    batch,
    make_policy,
    prompts,
    rows_of,
    sample,
)
from streamrl.learner.batch.packing import PackedBatch
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.model.value_model import ValueModel, decoder_of
from streamrl.learner.objectives import nll_loss
from streamrl.learner.optim.optimizer import clip_gradients, make_optimizer
from streamrl.learner.supervised.preference_pairs import EncodedPair
from streamrl.learner.supervised.preferences import dpo_loss, pack_pairs
from streamrl.learner.supervised.reward_model import compare, pack_scored, reward_model_loss
from streamrl.types import LongArray, RolloutRows

BETA = 0.5
GAIN, ACCURACY = 0.2, 0.9
"""Wanted: of the mean reward of what is sampled, which is 1 / 8 by chance, and of pairs in the right order."""


def supervised(report: Report, wanted: Callable[[str], bool]) -> None:
    """Rows of `sft`, `dpo` and `reward_model` whose names are wanted, each the mean over all seeds."""
    for name, figure, unit, least in (
        ("sft", gain_of_demonstrations, "reward", GAIN),
        ("dpo", gain_of_pairs, "reward", GAIN),
        ("reward_model, share of fresh pairs in the right order", accuracy_of_scores, "", ACCURACY),
    ):
        if wanted(name):
            report.add(name, fmean(map(figure, SEEDS)), unit, at_least=least)


def gain_of_demonstrations(seed: int) -> float:
    """What `sft` gains on right answers."""
    policy, generator = make_policy(seed), torch.Generator().manual_seed(seed)
    before = reward(policy, generator)

    def loss() -> torch.Tensor:
        asked = prompts(generator)
        rows = rows_of(right_answers(asked), np.zeros((len(asked), ANSWER)), asked)
        return nll_loss(policy, *batch(rows, np.zeros(len(asked))))[0]

    descend(policy, loss)
    return reward(policy, generator) - before


def gain_of_pairs(seed: int) -> float:
    """What `dpo` gains on pairs of a right answer and a random one."""
    policy, reference = make_policy(seed), make_policy(seed)
    generator = torch.Generator().manual_seed(seed)
    before = reward(policy, generator)

    def loss() -> torch.Tensor:
        asked = np.repeat(prompts(generator), 2)
        rows = rows_of(paired(asked, generator), np.zeros((len(asked), ANSWER)), asked)
        (packed,) = pack_pairs(rows, 10**6)
        return dpo_loss(policy, packed, count_targets(rows), reference, BETA)[0]

    descend(policy, loss)
    return reward(policy, generator) - before


def accuracy_of_scores(seed: int) -> float:
    """The share of fresh pairs that a model which learnt by Bradley-Terry puts in the right order."""
    model = ValueModel(decoder_of(make_policy(seed).model))
    generator = torch.Generator().manual_seed(seed)

    def pairs() -> tuple[PackedBatch, RolloutRows]:
        asked = np.repeat(prompts(generator), 2)
        answers = paired(asked, generator).astype(np.int32)
        made = [
            EncodedPair(number, asked[row : row + 1].astype(np.int32), answers[row], answers[row + 1], 0.0)
            for number, row in enumerate(range(0, len(asked), 2))
        ]
        (packed,) = pack_scored(made, 10**6)
        return packed, rows_of(answers.astype(np.int64), np.zeros(answers.shape), asked)

    def loss() -> torch.Tensor:
        packed, rows = pairs()
        return reward_model_loss(model, packed, count_targets(rows))[0]

    descend(model, loss)
    with torch.no_grad():
        return float(compare(model(pairs()[0]))[1].mean())


def right_answers(asked_N: LongArray) -> LongArray:
    """int64 [N, 4]."""
    return np.repeat((asked_N[:, None] + 1) % DIGITS, ANSWER, axis=1)


def paired(asked_N: LongArray, generator: torch.Generator) -> LongArray:
    """int64 [N, 4]: right answers in the even rows, in the odd ones answers of which one random token is wrong."""
    answers = right_answers(asked_N)
    odd = np.arange(1, len(asked_N), 2)
    place = torch.randint(0, ANSWER, (len(odd),), generator=generator).numpy()
    other = torch.randint(1, DIGITS, (len(odd),), generator=generator).numpy()
    answers[odd, place] = (answers[odd, place] + other) % DIGITS
    return answers


def reward(policy: PolicyModel, generator: torch.Generator) -> float:
    """The mean over a batch that is sampled."""
    nobody = np.zeros(PROMPTS * GROUP_SIZE, np.bool_)
    return float(sample(policy, prompts(generator), nobody, generator).rewards.mean())


def descend(model: nn.Module, loss: Callable[[], torch.Tensor]) -> None:
    """Take the steps, each on a batch of its own."""
    parameters = list(model.parameters())
    optimizer = make_optimizer(parameters, RATE)
    for _ in range(STEPS):
        loss().backward()
        clip_gradients(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
