"""The loss that balances experts is transformers' own, however a batch is cut into packs; what routers show."""

import numpy as np
import pytest
import torch
from transformers import (
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from streamrl.learner.batch.packing import PackedBatch, empty_pack, pack
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.router_balance import RouterBalance
from streamrl.types import RolloutRows, TokenOrigin

VOCAB, EXPERTS, CHOSEN = 23, 6, 2
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 12,
    "max_position_embeddings": 64,
}


def model_of(kind: str) -> PreTrainedModel:
    torch.manual_seed(1)
    chosen = {"num_experts_per_tok": CHOSEN}
    if kind == "mixtral":
        model = MixtralForCausalLM(MixtralConfig(**SIZES, num_local_experts=EXPERTS, **chosen))
    else:
        experts = {"num_experts": EXPERTS, "moe_intermediate_size": 16, **chosen}
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts))
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.3)
    return model


def rows() -> RolloutRows:
    """Two groups of three rows, each with its prompt."""
    draw = np.random.default_rng(3)
    prompts = [draw.integers(0, VOCAB, 20), draw.integers(0, VOCAB, 5)]
    texts = [np.concatenate([prompts[n // 3], draw.integers(0, VOCAB, 4 + n)]) for n in range(6)]
    lengths = np.array([len(text) for text in texts])
    origin = np.full(lengths.sum(), TokenOrigin.SAMPLED, np.uint8)
    for number, start in enumerate(np.cumsum(lengths) - lengths):
        origin[start : start + len(prompts[number // 3])] = TokenOrigin.PROMPT
    sampled = origin == TokenOrigin.SAMPLED
    return RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        token_ids=np.concatenate(texts).astype(np.int32),
        token_origin=origin,
        rollout_logprobs=np.where(sampled, -1.0, 0.0).astype(np.float32),
        token_steps=np.where(sampled, 0, -1),
        group=np.arange(6) // 3,
        sample_index=np.arange(6) % 3,
        rewards=np.zeros(6),
        valid=np.ones(6, np.bool_),
    )


def of_transformers(kind: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss over a padded batch, its mask the tokens before a sampled one, and the gradients."""
    model, batch = model_of(kind), rows()
    lengths = batch.lengths()
    ids, mask = torch.zeros(6, int(lengths.max()), dtype=torch.long), torch.zeros(6, int(lengths.max()))
    for row, (start, stop) in enumerate(zip(batch.offsets[:-1], batch.offsets[1:], strict=True)):
        ids[row, : stop - start] = torch.from_numpy(batch.token_ids[start:stop].astype(np.int64))
        mask[row, : stop - start - 1] = torch.from_numpy(batch.token_origin[start + 1 : stop] == TokenOrigin.SAMPLED)
    logits = model(ids, output_router_logits=True, use_cache=False).router_logits
    loss = load_balancing_loss_func(logits, EXPERTS, CHOSEN, mask)
    loss.backward()
    return loss.detach(), gradients_of(model)


def gradients_of(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def balanced(
    policy: PolicyModel, packs: list[PackedBatch], coefficient: float
) -> tuple[torch.Tensor, dict[str, float]]:
    balance = RouterBalance(policy.routers, coefficient, lambda part: part)
    balance.count(packs, lambda one: policy(one, 1.0))
    total = torch.zeros(())
    for one in packs:
        policy(one, 1.0)
        total = total + balance.term(one)
    return total, balance.metrics()


@pytest.mark.parametrize("max_tokens", [30, 60, 500])
@pytest.mark.parametrize("share_from", [4, None])
@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_the_loss_and_its_gradients_are_transformers_own_however_rows_are_packed(kind, share_from, max_tokens):
    expected, gradients = of_transformers(kind)
    policy = PolicyModel(model_of(kind))
    packs = pack(rows(), np.ones(6), max_tokens, share_from=share_from)
    loss, metrics = balanced(policy, packs, 0.5)
    torch.testing.assert_close(loss.detach(), 0.5 * expected, rtol=1e-5, atol=1e-6)
    assert metrics["loss/router_aux"] == pytest.approx(float(expected), rel=1e-5)
    loss.backward()
    found = gradients_of(policy.model)
    assert any(name.endswith("mlp.gate.weight") for name in found)
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            found.get(name, torch.zeros(())).expand_as(gradient), 0.5 * gradient, rtol=1e-3, atol=1e-6
        )


def test_without_a_coefficient_there_is_no_loss_and_no_forward_more():
    policy = PolicyModel(model_of("qwen3_moe"))
    packs = pack(rows(), np.ones(6), 60)
    balance = RouterBalance(policy.routers, 0.0, lambda part: part)
    balance.count(packs, lambda one: pytest.fail("a forward that nobody asked for"))
    policy(packs[0], 1.0)
    assert balance.term(packs[0]) == 0.0


def test_routers_that_know_no_preference_have_the_entropy_of_all_experts_and_a_known_load():
    model = model_of("qwen3_moe")
    for layer in model.model.layers:
        layer.mlp.gate.weight.data.zero_()
    _, metrics = balanced(PolicyModel(model), pack(rows(), np.ones(6), 60), 1.0)
    assert metrics["router/entropy"] == pytest.approx(np.log(EXPERTS), rel=1e-5)
    # All choose the same two of six.
    assert metrics["router/load_max_over_mean"] == pytest.approx(EXPERTS / CHOSEN)
    assert metrics["loss/router_aux"] == pytest.approx(CHOSEN, rel=1e-5)


def test_a_model_without_experts_has_no_routers():
    assert PolicyModel(Qwen3ForCausalLM(Qwen3Config(**SIZES))).routers is None


def test_a_rank_without_rows_takes_part_and_adds_nothing():
    policy = PolicyModel(model_of("qwen3_moe"))
    packs = pack(rows(), np.ones(6), 500)
    alone, metrics = balanced(policy, packs, 0.5)
    beside, others = balanced(policy, [*packs, empty_pack()], 0.5)
    assert beside.item() == alone.item()
    assert others == metrics
    nothing, _ = balanced(policy, [empty_pack()], 0.5)
    assert nothing.item() == 0.0
