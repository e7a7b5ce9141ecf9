"""Does every algorithm learn? Each advantage with each loss, on a small task, in one process, without Ray.

The task: after a prompt of one digit, sample its successor, four times. A policy of two layers samples under its own
weights, is scored by the share of right tokens, and takes optimizer steps on what it sampled: two on each batch, so
that the second is off policy and ratios, clips and weights have work to do. The figure is the mean reward of the last
steps less that of the first ones. `opd` has a teacher, which `grpo` with `ppo` made before. Under `gdpo` each of the
four tokens is a component; under `remax` the last rollout of each prompt is greedy, and in no figure. `gae` and
`prime` are left out: there is no second model here.

    make bench-algorithms                  the whole table, some minutes
    make bench-algorithms ARGS=--quick     one loss for each advantage, one advantage for each loss
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from report import Report
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.algorithms.aggregation import Denominators
from streamrl.algorithms.judging import JudgedRows, advantages_of, baseline_rows
from streamrl.algorithms.losses import LOSSES, ROW_LOSSES, TEACHER_LOSSES
from streamrl.config import Config, fields
from streamrl.config.learner_tables import AlgorithmConfig, LearnerConfig, OptimizerConfig
from streamrl.config.schema import RolloutConfig
from streamrl.learner.objectives import Reference, policy_loss
from streamrl.learner.optimizer import clip_gradients, make_optimizer
from streamrl.learner.packing import PackedBatch, pack
from streamrl.learner.policy import PolicyModel
from streamrl.learner.rows import count_targets
from streamrl.types import LongArray, RolloutRows

DIGITS, ANSWER = 8, 4
PROMPTS, GROUP_SIZE = 8, 8
STEPS, ENDS = 60, 10
"""Batches of a run, and how many at either end make the figure."""
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


def make_policy(seed: int) -> PolicyModel:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=DIGITS,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=16,
        tie_word_embeddings=True,
    )
    return PolicyModel(Qwen3ForCausalLM(config))


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


def prompts(generator: torch.Generator) -> LongArray:
    """int64 [N], the digit of each rollout, group after group."""
    drawn = torch.randint(0, DIGITS, (PROMPTS,), generator=generator).numpy()
    return np.repeat(drawn, GROUP_SIZE)


def rows_of(token_NT: LongArray, logprob_NT: npt.NDArray[np.float64], prompt_N: LongArray) -> RolloutRows:
    """Rows of one prompt token and four sampled ones; the reward is the share of them that is right."""
    count = len(prompt_N)
    return RolloutRows(
        offsets=np.arange(count + 1) * (ANSWER + 1),
        token_ids=np.concatenate([prompt_N[:, None], token_NT], 1).reshape(-1).astype(np.int32),
        token_origin=np.tile(np.array([0] + [1] * ANSWER, np.uint8), count),
        rollout_logprobs=np.pad(logprob_NT, ((0, 0), (1, 0))).reshape(-1).astype(np.float32),
        token_steps=np.zeros(count * (ANSWER + 1), np.int64),
        group=np.arange(count) // GROUP_SIZE,
        sample_index=np.arange(count) % GROUP_SIZE,
        rewards=right_tokens(token_NT, prompt_N).mean(1),
        valid=np.ones(count, np.bool_),
    )


def right_tokens(token_NT: LongArray, prompt_N: LongArray) -> npt.NDArray[np.float64]:
    """float64 [N, 4], 1 where the token is the successor."""
    return (token_NT == (prompt_N[:, None] + 1) % DIGITS).astype(np.float64)


@torch.no_grad()
def sample(
    policy: PolicyModel, prompt_N: LongArray, greedy_N: npt.NDArray[np.bool_], generator: torch.Generator
) -> RolloutRows:
    """Four tokens for each prompt, one after the other. greedy_N: bool [N], rows that take the likeliest."""
    count = len(prompt_N)
    tokens, logprobs = np.zeros((count, ANSWER), np.int64), np.zeros((count, ANSWER))
    for place in range(ANSWER):
        (packed, _), everyone = batch(rows_of(tokens, logprobs, prompt_N), np.ones(count)), torch.arange(count)
        chances_NV = distributions(policy, packed).reshape(count, ANSWER, DIGITS)[:, place]
        drawn = torch.multinomial(chances_NV.exp(), 1, generator=generator)[:, 0]
        drawn = torch.where(torch.from_numpy(greedy_N), chances_NV.argmax(1), drawn)
        tokens[:, place], logprobs[:, place] = drawn.numpy(), chances_NV[everyone, drawn].numpy()
    return rows_of(tokens, logprobs, prompt_N)


def distributions(policy: PolicyModel, packed: PackedBatch) -> torch.Tensor:
    """float32 [K, V], the log-probs of every token in the place of each target."""
    states = policy.model.base_model(
        input_ids=packed.ids[None],
        position_ids=packed.position_ids[None],
        attention_mask=None,
        use_cache=False,
        segments=packed.layout,
    ).last_hidden_state[0]
    return policy.model.get_output_embeddings()(states[packed.predictors]).log_softmax(-1)


def batch(rows: RolloutRows, advantages: npt.NDArray[np.float64]) -> tuple[PackedBatch, Denominators]:
    """All rows in one pack, with the counts of the batch."""
    (packed,) = pack(rows, advantages, 10**6)
    return packed, count_targets(rows)


def train(algorithm: AlgorithmConfig, seed: int, teacher: Reference | None = None) -> Run:
    """A run of one algorithm: a batch is sampled, and two steps are made of it."""
    policy, generator = make_policy(seed), torch.Generator().manual_seed(seed)
    optimizer = make_optimizer(policy.parameters(), OptimizerConfig(lr=5e-3, warmup_steps=0))
    config = Config(rollout=RolloutConfig(group_size=GROUP_SIZE), learner=LearnerConfig(algorithm=algorithm))
    greedy = baseline_rows(np.tile(np.arange(GROUP_SIZE), PROMPTS), config)
    rewards = []
    for _ in range(STEPS):
        rows = sample(policy, prompts(generator), greedy, generator)
        rewards.append(float(rows.rewards[~greedy].mean()))
        advantages = advantages_of(judged(rows), config)
        rows = replace(rows, valid=~greedy)
        for _ in range(2):
            loss, _ = policy_loss(policy, *batch(rows, advantages), algorithm, 1.0, teacher)
            loss.backward()
            clip_gradients(list(policy.parameters()), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return Run(rewards, policy)


def judged(rows: RolloutRows) -> JudgedRows:
    """What the estimators look at: of each row the share of right tokens, and each token by itself."""
    token_NT = rows.token_ids.reshape(rows.num_rows, ANSWER + 1)
    components = right_tokens(token_NT[:, 1:].astype(np.int64), token_NT[:, 0].astype(np.int64))
    lengths = np.full(rows.num_rows, ANSWER)
    return JudgedRows(rows.rewards, rows.valid, rows.group, rows.sample_index, lengths, components)


def pairs(quick: bool) -> Iterator[tuple[str, str]]:
    """Advantage and loss of each run; a loss that has no use for advantages runs once."""
    (named,) = (leaf.type for leaf in fields.leaves() if leaf.name == "learner.algorithm.advantage")
    advantages, losses = sorted({*fields.literals(named)} - {"gae", "prime"}), sorted(set(LOSSES) - TEACHER_LOSSES)
    for advantage in advantages:
        for loss in losses:
            if not quick or advantage == "grpo" or loss == "ppo":
                yield advantage, loss


def main(quick: bool, seed: int) -> int:
    """The table; 0 if every run learnt."""
    torch.set_num_threads(1)
    report = Report("algorithms")
    for advantage, loss in pairs(quick):
        report.add(f"{advantage} x {loss}", train(settings(advantage, loss), seed).gain, "reward", at_least=WANTED)
    teacher = train(settings("grpo", "ppo"), seed).policy
    for loss in sorted(TEACHER_LOSSES):
        taught = train(settings("grpo", loss), seed + 1, teacher)
        report.add(f"{loss}, of a teacher", taught.gain, "reward", at_least=WANTED)
    return report.finish()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(main(given.quick, given.seed))
