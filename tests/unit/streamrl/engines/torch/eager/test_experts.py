"""Experts over the tokens that chose them, against transformers' own layer; and rows that feel no company."""

import pytest
import torch
import torch.nn.functional as F
from transformers import Qwen3MoeConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

from streamrl.engines.torch.eager.experts import choose_experts, run_experts
from streamrl.engines.torch.products import TiledProducts

HIDDEN, EXPERTS = 16, 5


def layer(*, renormalised: bool = True) -> Qwen3MoeSparseMoeBlock:
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    block = Qwen3MoeSparseMoeBlock(Qwen3MoeConfig(**sizes, norm_topk_prob=renormalised))
    for parameter in block.parameters():
        parameter.data.normal_(0.0, 0.5)
    return block.eval()


def run(block: Qwen3MoeSparseMoeBlock, x_TE: torch.Tensor, *, min_rows: int = 1) -> torch.Tensor:
    products, experts = TiledProducts(), block.experts
    seen = []

    def one(expert: int, rows_RE: torch.Tensor) -> torch.Tensor:
        seen.append(len(rows_RE))
        gate, up = products.linear(rows_RE, experts.gate_up_proj[expert].t(), None).chunk(2, -1)
        return products.linear(F.silu(gate) * up, experts.down_proj[expert].t(), None)

    routes = choose_experts(products.linear(x_TE, block.gate.weight.t(), None), 2, block.gate.norm_topk_prob)
    out = run_experts(x_TE, routes, one, num_experts=EXPERTS, min_rows=min_rows)
    assert min(seen) >= min_rows
    return out


@pytest.mark.parametrize("renormalised", [True, False])
@pytest.mark.parametrize("tokens", [1, 3, 40])
@torch.no_grad()
def test_tokens_get_from_their_experts_what_transformers_gives_them(tokens: int, renormalised: bool) -> None:
    block = layer(renormalised=renormalised)
    x_TE = torch.randn(tokens, HIDDEN)
    torch.testing.assert_close(run(block, x_TE, min_rows=4), block(x_TE[None])[0], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_token_gets_the_same_bits_in_any_company_and_at_any_place() -> None:
    block = layer()
    x_TE = torch.randn(60, HIDDEN, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([run(block, x_TE[place : place + 1]) for place in range(len(x_TE))])
    assert torch.equal(run(block, x_TE), alone)
    order = torch.randperm(len(x_TE), generator=torch.Generator().manual_seed(2))
    assert torch.equal(run(block, x_TE[order]), alone[order])


def test_nothing_is_dropped_where_all_tokens_choose_the_same_experts() -> None:
    logits = torch.tensor([[0.0, 3.0, 0.0, 2.0, 0.0]]).repeat(7, 1)
    routes = choose_experts(logits, 2, renormalised=True)
    assert routes.experts.tolist() == [[1, 3]] * 7
    out = run_experts(torch.ones(7, HIDDEN), routes, lambda expert, rows: rows * expert, num_experts=5, min_rows=1)
    expected = (routes.weights * routes.experts).sum(-1, keepdim=True).expand(7, HIDDEN)
    torch.testing.assert_close(out, expected)
