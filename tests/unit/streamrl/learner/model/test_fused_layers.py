"""Layers with a forward of ours give what transformers' own give, and the same gradients."""

import numpy as np
import pytest
import torch
from support.learner.fused import packed_rows, small_model

from streamrl.config.schema.learner import ExecutionConfig
from streamrl.learner.layers.layer_ops import PLAIN_OPS
from streamrl.learner.model.fused_layers import fuse, ops_for
from streamrl.learner.model.policy import PolicyModel

FAMILIES = ("qwen2", "qwen3", "llama")


def learned(family: str, *, fused: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Log-probs of a pack with shared prompts, and the gradients of their squares."""
    model = small_model(family)
    policy = PolicyModel(model)
    if fused:
        fuse(model, PLAIN_OPS)
    logprobs, _ = policy(packed_rows(), 0.8)
    logprobs.square().sum().backward()
    return logprobs.detach(), {name: param.grad for name, param in model.named_parameters()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_layer_is_that_of_transformers(family: str) -> None:
    (logprobs, gradients), (plain, plain_gradients) = (learned(family, fused=fused) for fused in (True, False))
    torch.testing.assert_close(logprobs, plain, rtol=1e-6, atol=1e-6)
    for name, gradient in gradients.items():
        assert (gradient - plain_gradients[name]).norm() < 1e-5 * plain_gradients[name].norm(), name


def test_every_layer_and_the_last_norm_are_fused() -> None:
    model, seen = small_model("qwen3"), []

    def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        seen.append(weight)
        return PLAIN_OPS.norm(x, weight, eps)

    policy = PolicyModel(model)
    fuse(model, PLAIN_OPS._replace(norm=norm))
    policy(packed_rows(), 1.0)
    names = {id(param): name for name, param in model.named_parameters()}
    assert [names[id(weight)] for weight in seen] == [
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.input_layernorm.weight",
        "model.norm.weight",
    ]


def test_a_model_of_other_layers_stays_as_it_is() -> None:
    model = small_model("qwen3", hidden_act="gelu")
    fuse(model, PLAIN_OPS)
    assert "forward" not in vars(model.model.layers[0])


@pytest.mark.parametrize(
    ("execution", "device"),
    [
        (ExecutionConfig(kernels="torch"), "cuda"),
        (ExecutionConfig(compile=True), "cuda"),
        (ExecutionConfig(), "cpu"),
    ],
)
def test_layers_are_left_alone_where_they_are_compiled_or_nobody_has_kernels(
    execution: ExecutionConfig, device: str
) -> None:
    assert ops_for(execution, torch.device(device)) is None


def test_packs_are_as_equal_as_their_rows_allow() -> None:
    packs = packed_rows(max_tokens=100, split=True)
    sizes = np.array([len(pack.ids) for pack in packs])
    assert len(packs) > 2
    assert sizes.min() > sizes.max() / 2
