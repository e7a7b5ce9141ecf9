"""The task of the algorithms' table: after a prompt of one digit, four times its successor."""

import numpy as np
import numpy.typing as npt
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.algorithms.aggregation import Denominators
from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.model.policy import PolicyModel
from streamrl.types import LongArray, RolloutRows

DIGITS, ANSWER = 8, 4
PROMPTS, GROUP_SIZE = 8, 8
STEPS = 100
SEEDS = (0, 1, 2)
RATE = OptimizerConfig(lr=3e-3, warmup_steps=0)


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
