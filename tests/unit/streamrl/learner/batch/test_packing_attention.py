"""A pack gives what each row alone gives: log-probs, entropy and gradients, for each model family."""

import numpy as np
import pytest
import torch
from support.engines.family_models import FAMILIES, family_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from streamrl.errors import ConfigError
from streamrl.learner.attention.forms import QUERY_BLOCK
from streamrl.learner.batch.packing import PackedBatch, empty_pack, pack
from streamrl.learner.model.policy import PolicyModel
from streamrl.models.mixers import mixers_of
from streamrl.types import RolloutRows

SIZES = {
    "vocab_size": 23,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def make_model(family: str) -> PreTrainedModel:
    if family in FAMILIES:
        return family_model(family, seed=3)
    torch.manual_seed(3)
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=False))
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True))
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))


def make_rows(*, seed: int = 0) -> RolloutRows:
    """Three groups of three rows that share a prompt, of many lengths, three rows alone, and a group whose rows share
    their first sampled tokens too: two of them more than the third, and the fourth all of them."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 23, n) for n in (4, 1, 7) for _ in range(3)]
    prompts += [rng.integers(0, 23, n) for n in (3, 3, 9)]
    groups = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5]
    answers = [rng.integers(0, 23, n) for n in (1, 3, 3, 5, 1, 9, 2, 2, 4, 2, 2, 6)]
    stem = rng.integers(0, 23, 6)
    answers += [np.append(stem[:shared], rng.integers(0, 23, own)) for shared, own in ((3, 4), (6, 2), (6, 5), (6, 0))]
    prompts += [rng.integers(0, 23, 5)] * 4
    groups += [6] * 4
    leader = {g: prompts[groups.index(g)] for g in set(groups)}
    parts = [x for g, answer in zip(groups, answers, strict=True) for x in (leader[g], answer)]
    lengths = np.array([len(x) for x in parts])
    count = int(lengths.sum())
    return RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)[1::2]]),
        token_ids=np.concatenate(parts).astype(np.int32),
        token_origin=np.repeat(np.tile([0, 1], len(groups)), lengths).astype(np.uint8),
        rollout_logprobs=np.full(count, -2.0, np.float32),
        token_steps=np.zeros(count, np.int64),
        group=np.array(groups),
        sample_index=np.arange(len(groups)),
        rewards=np.zeros(len(groups)),
        valid=np.ones(len(groups), bool),
    )


def separately(model: PreTrainedModel, rows: RolloutRows, temperature: float) -> list[torch.Tensor]:
    """The library's own forward, one row at a time: log-probs of the sampled tokens."""
    found = []
    for start, end in zip(rows.offsets[:-1], rows.offsets[1:], strict=True):
        ids = torch.from_numpy(rows.token_ids[start:end]).long()
        logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1] / temperature
        logprobs = logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        found.append(logprobs[torch.from_numpy(rows.token_origin[start + 1 : end] == 1)])
    return found


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def assert_gradients_close(own: torch.Tensor | None, expected: torch.Tensor | None, share: float) -> None:
    """Of one weight, to a share of its largest gradient: a small one is what is left of the sum of large ones, and how
    they are rounded differs from processor to processor."""
    if expected is None:
        assert own is None or not own.any()
        return
    assert own is not None
    torch.testing.assert_close(own, expected, rtol=0, atol=share * max(1.0, expected.abs().max().item()))


def run_packs(policy: PolicyModel, packs: list[PackedBatch], temperature: float) -> torch.Tensor:
    return torch.cat([policy(p, temperature)[0] for p in packs])


@pytest.mark.parametrize("share_from", [1, None])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", *FAMILIES])
def test_packed_rows_equal_separate_rows_in_log_probs_and_gradients(family: str, share_from: int | None) -> None:
    rows, reference, policy = make_rows(), make_model(family), PolicyModel(make_model(family))
    expected = torch.cat(separately(reference, rows, 0.7))
    got = run_packs(policy, pack(rows, np.zeros(rows.num_rows), 64, share_from=share_from), 0.7)
    assert_close(got, expected)
    weights = torch.linspace(-1.0, 2.0, len(expected))
    (expected * weights).sum().backward()
    (got * weights).sum().backward()
    gradients = dict(policy.named_parameters())
    # A recurrence adds up more than attention does: its gradients have larger rounding.
    share_of_largest = 1e-4 if mixers_of(reference) else 1e-5
    for name, parameter in reference.named_parameters():
        assert_gradients_close(gradients[f"model.{name}"].grad, parameter.grad, share_of_largest)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "gemma2", "qwen3_moe"])
def test_a_tree_gives_the_loss_and_the_gradients_of_flat_rows_to_a_millionth(family: str) -> None:
    rows = make_rows()
    found = []
    for share_from in (None, 1):
        policy = PolicyModel(make_model(family))
        (packed,) = pack(rows, np.zeros(rows.num_rows), 4096, share_from=share_from)
        logprobs = policy(packed, 1.0)[0]
        loss = (torch.linspace(-1.0, 2.0, len(logprobs)) * logprobs).mean()
        loss.backward()
        found.append((packed.num_tokens, loss.detach(), [p.grad for p in policy.parameters()]))
    (flat_tokens, flat, flat_gradients), (tree_tokens, tree, tree_gradients) = found
    assert tree_tokens < 0.8 * flat_tokens
    torch.testing.assert_close(tree, flat, rtol=1e-6, atol=1e-6)
    for one, other in zip(tree_gradients, flat_gradients, strict=True):
        assert_gradients_close(one, other, 1e-6)


@pytest.mark.parametrize("family", ["mistral", "gemma2", "gpt_oss"])
def test_rows_longer_than_a_block_of_queries_keep_their_form(family: str) -> None:
    """Windows, caps and sinks are computed by blocks, each made again in the backward."""
    draw = np.random.default_rng(1)
    ids = torch.from_numpy(draw.integers(3, 90, 2 * QUERY_BLOCK + 9))
    model = family_model(family, max_position_embeddings=1024)
    expected = model(input_ids=ids[None], use_cache=False).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])
    policy = PolicyModel(family_model(family, max_position_embeddings=1024))
    (packed,) = pack(one_row(ids), np.zeros(1), 4096)
    got, _ = policy(packed, 1.0)
    assert_close(got, expected[:, 0])
    expected.sum().backward()
    got.sum().backward()
    gradients = dict(policy.named_parameters())
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[f"model.{name}"].grad, parameter.grad, rtol=1e-4, atol=1e-4)


def one_row(ids: torch.Tensor) -> RolloutRows:
    """A row of one prompt token and the rest sampled."""
    count = len(ids)
    return RolloutRows(
        offsets=np.array([0, count]),
        token_ids=ids.numpy().astype(np.int32),
        token_origin=(np.arange(count) > 0).astype(np.uint8),
        rollout_logprobs=np.full(count, -2.0, np.float32),
        token_steps=np.zeros(count, np.int64),
        group=np.zeros(1, np.int64),
        sample_index=np.zeros(1, np.int64),
        rewards=np.zeros(1),
        valid=np.ones(1, bool),
    )


def test_logits_made_in_another_way_than_is_known_are_refused() -> None:
    model = family_model("granite")
    forward = model.lm_head.forward
    model.lm_head.forward = lambda hidden: forward(hidden) + torch.arange(96) / 10
    with pytest.raises(ConfigError, match="type 'granite': their logits are not the scaled and capped product"):
        PolicyModel(model)


def test_log_probs_do_not_depend_on_how_rows_are_cut_into_packs() -> None:
    rows, policy = make_rows(), PolicyModel(make_model("qwen3"))
    whole = run_packs(policy, pack(rows, np.zeros(rows.num_rows), 4096), 1.0)
    cut = run_packs(policy, pack(rows, np.zeros(rows.num_rows), 16), 1.0)
    assert_close(cut, whole)


def test_logits_by_blocks_give_the_same_log_probs_entropy_and_gradients() -> None:
    rows = make_rows()
    (packed,) = pack(rows, np.zeros(rows.num_rows), 4096)
    results = []
    for logits_at_once in (None, 5 * packed.num_targets):
        policy = PolicyModel(make_model("qwen3"), logits_at_once)
        logprobs, entropy = policy(packed, 0.9)
        assert not entropy.requires_grad
        logprobs.square().sum().backward()
        results.append((logprobs.detach(), entropy, policy.model.model.embed_tokens.weight.grad))
    for whole, chunked in zip(*(result[:2] for result in results), strict=True):
        assert_close(chunked, whole)
    assert_gradients_close(results[1][2], results[0][2], 1e-5)


def test_entropy_is_that_of_the_tempered_distribution() -> None:
    rows, model = make_rows(), make_model("llama")
    ids = torch.from_numpy(rows.token_ids[: rows.offsets[1]]).long()
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0, 3] / 0.6
        expected = torch.distributions.Categorical(logits=logits).entropy()
    (packed,) = pack(rows, np.zeros(rows.num_rows), 4096)
    _, entropy = PolicyModel(model)(packed, 0.6)
    assert_close(entropy[0], expected)


def test_a_pack_without_targets_gives_gradients_of_exactly_zero() -> None:
    policy = PolicyModel(make_model("qwen3"))
    logprobs, _ = policy(empty_pack(), 1.0)
    logprobs.sum().backward()
    assert all((p.grad == 0).all() for p in policy.parameters())


def test_the_attached_model_refuses_a_call_without_a_layout() -> None:
    policy = PolicyModel(make_model("llama"))
    with pytest.raises(ValueError, match="segments"):
        policy.model(input_ids=torch.zeros(1, 4, dtype=torch.long), use_cache=False)
