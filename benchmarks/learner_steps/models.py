"""What the learner's benchmark works on: models, rows, and the ways to train on them."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from streamrl.algorithms.aggregation import Denominators, token_mean
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.batch.prefix_tree import SHARED_FROM
from streamrl.learner.model.logprobs import token_logprobs
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.objectives import nll_loss
from streamrl.types import RolloutRows

PROMPT = 16
_UNTRAINED = -100

SMALL = Qwen3Config(
    vocab_size=16_384,
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=7,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
)
"""30M parameters."""

QWEN3_600M = Qwen3Config(
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40_960,
    tie_word_embeddings=True,
)
"""The shape of Qwen3-0.6B."""


def make_rows(count: int, vocabulary: int, *, mean: float = 150.0, most: int = 512) -> RolloutRows:
    """Rows without a common prompt. Tokens of a row: lognormal about `mean`, `most` at most, the longest in a hundred
    ten times the median before that: sigma is 1."""
    random = np.random.default_rng(0)
    sigma = 1.0
    drawn = random.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)
    lengths = np.clip(drawn, 2 * PROMPT, most).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1])
    within = np.arange(total) - np.repeat(offsets[:-1], lengths)
    return RolloutRows(
        offsets=offsets,
        token_ids=random.integers(0, vocabulary, total).astype(np.int32),
        token_origin=(within >= PROMPT).astype(np.uint8),
        rollout_logprobs=np.zeros(total, np.float32),
        token_steps=np.zeros(total, np.int64),
        group=np.arange(count),
        sample_index=np.zeros(count, np.int64),
        rewards=np.zeros(count),
        valid=np.ones(count, bool),
    )


def make_branches(branches: int, length: int, vocabulary: int, *, levels: int) -> RolloutRows:
    """Branches of one episode as rows, each of `length` tokens: the first half is the prompt of all, and the second is
    trained. With one level it is each branch's own; with more it is cut into as many parts, of which the first is one
    of two, the second one of four, and the last each branch's own."""
    random = np.random.default_rng(0)
    half = length // 2
    common, parts = random.integers(0, vocabulary, half), np.array_split(np.arange(half), levels)
    drawn = random.integers(0, vocabulary, (levels, branches, half))
    same = [(np.arange(branches) * 2 ** (level + 1)) // branches for level in range(levels - 1)] + [np.arange(branches)]
    rows = [
        np.concatenate([common, *(drawn[level, same[level][row], part] for level, part in enumerate(parts))])
        for row in range(branches)
    ]
    total = branches * length
    return RolloutRows(
        offsets=np.arange(branches + 1) * length,
        token_ids=np.concatenate(rows).astype(np.int32),
        token_origin=(np.tile(np.arange(length), branches) >= half).astype(np.uint8),
        rollout_logprobs=np.zeros(total, np.float32),
        token_steps=np.zeros(total, np.int64),
        group=np.zeros(branches, np.int64),
        sample_index=np.arange(branches),
        rewards=np.zeros(branches),
        valid=np.ones(branches, bool),
    )


def packs_of(rows: RolloutRows, most: int, share_from: int | None = SHARED_FROM) -> list[PackedBatch]:
    return pack(rows, np.zeros(rows.num_rows), most, share_from=share_from)


def packed_loss(policy: PolicyModel, packs: Sequence[PackedBatch], total: Denominators) -> float:
    """The loss of a batch, with its gradients at the parameters."""
    found = 0.0
    for one in packs:
        loss, _ = nll_loss(policy, one, total)
        loss.backward()
        found += loss.item()
    return found


def padded_loss(model: PreTrainedModel, rows: RolloutRows, batches: Sequence[np.ndarray], total: Denominators) -> float:
    """The same loss by the library's own forward on rows that are padded to the longest of their micro-batch, padding
    and logits of the whole vocabulary for each place included, as it is usually computed."""
    found = 0.0
    for batch in batches:
        ids, mask, targets = (torch.from_numpy(x) for x in _padded(rows, batch))
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1].flatten(0, 1)
        wanted = ids[:, 1:].masked_fill(~targets[:, 1:], _UNTRAINED).flatten()
        logprobs = -cross_entropy(logits, wanted, ignore_index=_UNTRAINED, reduction="none")[wanted != _UNTRAINED]
        found += _backward(logprobs, total)
    return found


def trimmed_loss(
    model: PreTrainedModel, rows: RolloutRows, batches: Sequence[np.ndarray], total: Denominators
) -> float:
    """The same where only the decoder sees the padding: log-probs are of the trained tokens alone, and made as those of
    packs are."""
    found = 0.0
    for batch in batches:
        ids, mask, targets = (torch.from_numpy(x) for x in _padded(rows, batch))
        states = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        hidden = states[:, :-1][targets[:, 1:]]
        logprobs, _ = token_logprobs(hidden, model.lm_head.weight, None, ids[targets], 1.0)
        found += _backward(logprobs, total)
    return found


def _backward(logprobs: torch.Tensor, total: Denominators) -> float:
    """The part of the loss that these log-probs have, with its gradients."""
    loss = -(token_mean(torch.ones_like(logprobs), total) * logprobs).sum()
    loss.backward()
    return loss.item()


def _padded(rows: RolloutRows, batch: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[rows, longest]: ids, which of them are no padding, and which are trained."""
    lengths = rows.lengths()[batch]
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids, targets = np.zeros(mask.shape, np.int64), np.zeros(mask.shape, bool)
    for place, row in enumerate(batch):
        part = slice(rows.offsets[row], rows.offsets[row + 1])
        ids[place, : lengths[place]] = rows.token_ids[part]
        targets[place, : lengths[place]] = rows.token_origin[part] == 1
    return ids, mask.astype(np.int64), targets


def make_model(config: Qwen3Config, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    torch.manual_seed(0)
    with torch.device(device):
        # A model writes into its configuration how it attends.
        return Qwen3ForCausalLM(copy.deepcopy(config)).to(dtype)
