"""A pack gives what each row alone gives: log-probs, entropy and gradients, for each model family."""

import numpy as np
import pytest
import torch
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
from streamrl.learner.packing import PackedBatch, empty_pack, pack
from streamrl.learner.policy import PolicyModel
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
    torch.manual_seed(3)
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=False))
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True))
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))


def make_rows(*, seed: int = 0) -> RolloutRows:
    """Three groups of three rows that share a prompt, of many lengths, and three rows alone."""
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(0, 23, n) for n in (4, 1, 7) for _ in range(3)]
    prompts += [rng.integers(0, 23, n) for n in (3, 3, 9)]
    groups = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 5]
    answers = [rng.integers(0, 23, n) for n in (1, 3, 3, 5, 1, 9, 2, 2, 4, 2, 2, 6)]
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


def run_packs(policy: PolicyModel, packs: list[PackedBatch], temperature: float) -> torch.Tensor:
    return torch.cat([policy(p, temperature)[0] for p in packs])


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama"])
def test_packed_rows_equal_separate_rows_in_log_probs_and_gradients(family: str, share: bool) -> None:
    rows, reference, policy = make_rows(), make_model(family), PolicyModel(make_model(family))
    expected = torch.cat(separately(reference, rows, 0.7))
    got = run_packs(policy, pack(rows, np.zeros(rows.num_rows), 64, share_prompts=share), 0.7)
    assert_close(got, expected)
    weights = torch.linspace(-1.0, 2.0, len(expected))
    (expected * weights).sum().backward()
    (got * weights).sum().backward()
    gradients = dict(policy.named_parameters())
    for name, parameter in reference.named_parameters():
        assert_close(gradients[f"model.{name}"].grad, parameter.grad)


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
    for whole, chunked in zip(*results, strict=True):
        assert_close(chunked, whole)


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


def test_a_model_with_a_sliding_window_is_refused_by_name() -> None:
    config = Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=0)
    with pytest.raises(ConfigError, match="sliding_window = 8"):
        PolicyModel(Qwen2ForCausalLM(config))


def test_the_attached_model_refuses_a_call_without_a_layout() -> None:
    policy = PolicyModel(make_model("llama"))
    with pytest.raises(ValueError, match="segments"):
        policy.model(input_ids=torch.zeros(1, 4, dtype=torch.long), use_cache=False)
