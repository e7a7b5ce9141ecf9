"""The task of the choices in the algorithms' table: after a prompt of one digit, three times its successor.

An answer ends with a token of `ENDS`, or is cut off after `LONGEST` tokens, so rows are ragged; what stands behind the
third token is worth nothing. The model is that of `task`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from algorithm_cases.task import DIGITS, GROUP_SIZE, PROMPTS, distributions
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.model.policy import PolicyModel
from streamrl.types import LongArray, RolloutRows

RIGHT, LONGEST = 3, 6
"""Tokens that are worth something, and tokens of an answer at most."""
ENDS = (0, 7)
"""No successor of a prompt is one; with two of them most first answers end early."""


@dataclass(frozen=True, slots=True)
class Answers:
    """token_NL: int64 [N, LONGEST]; what stands behind an end has no part. logprob_NL: float64, of each as it was
    sampled."""

    token_NL: LongArray
    logprob_NL: npt.NDArray[np.float64]

    @property
    def length_N(self) -> LongArray:
        """int64 [N], tokens up to the first end, with it."""
        ends_NL = np.isin(self.token_NL, ENDS)
        return np.where(ends_NL.any(1), ends_NL.argmax(1) + 1, LONGEST)

    @property
    def cut_off_N(self) -> npt.NDArray[np.bool_]:
        """bool [N], answers that never came to their end."""
        return ~np.isin(self.token_NL, ENDS).any(1)


def ragged_prompts(generator: torch.Generator) -> LongArray:
    """int64 [N], the digit of each rollout, group after group."""
    drawn = torch.randint(0, DIGITS - 2, (PROMPTS,), generator=generator).numpy()
    return np.repeat(drawn, GROUP_SIZE)


@torch.no_grad()
def sample_answers(policy: PolicyModel, prompt_N: LongArray, generator: torch.Generator) -> Answers:
    """One for each prompt. Tokens behind an end are drawn too, and have no part."""
    count = len(prompt_N)
    tokens, logprobs = np.zeros((count, LONGEST), np.int64), np.zeros((count, LONGEST))
    for place in range(LONGEST):
        so_far = Answers(tokens[:, : place + 1], logprobs[:, : place + 1])
        (packed,) = packs(rows_of(so_far, prompt_N, np.full(count, place + 1), 0), np.ones(count), 0)
        chances_NV = distributions(policy, packed).reshape(count, place + 1, DIGITS)[:, place]
        drawn = torch.multinomial(chances_NV.exp(), 1, generator=generator)[:, 0]
        tokens[:, place], logprobs[:, place] = drawn.numpy(), chances_NV[torch.arange(count), drawn].numpy()
    return Answers(tokens, logprobs)


def rows_of(answers: Answers, prompt_N: LongArray, length_N: LongArray, version: int) -> RolloutRows:
    """Rows of one prompt token and so many of an answer, sampled under the weights of step `version`."""
    count, width = answers.token_NL.shape
    there = np.arange(width + 1) <= length_N[:, None]
    tokens = int(there.sum())
    return RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(length_N + 1)]),
        token_ids=np.concatenate([prompt_N[:, None], answers.token_NL], 1)[there].astype(np.int32),
        token_origin=np.broadcast_to(np.arange(width + 1) > 0, there.shape)[there].astype(np.uint8),
        rollout_logprobs=np.pad(answers.logprob_NL, ((0, 0), (1, 0)))[there].astype(np.float32),
        token_steps=np.full(tokens, version),
        group=np.arange(count) // GROUP_SIZE,
        sample_index=np.arange(count) % GROUP_SIZE,
        rewards=rewards_of(answers, prompt_N, length_N),
        valid=np.ones(count, np.bool_),
    )


def rewards_of(answers: Answers, prompt_N: LongArray, length_N: LongArray) -> npt.NDArray[np.float64]:
    """float64 [N], the share of the first three tokens that are the successor; one that is missing is wrong."""
    right_NL = answers.token_NL == prompt_N[:, None] + 1
    there_NL = np.arange(answers.token_NL.shape[1]) < length_N[:, None]
    return (right_NL & there_NL)[:, :RIGHT].sum(1) / RIGHT


def packs(rows: RolloutRows, advantages: npt.NDArray[np.float64], step: int) -> list[PackedBatch]:
    """All rows in one pack, for the step that is trained; none where no row is trained."""
    return pack(rows, advantages, 10**6, step=step)
