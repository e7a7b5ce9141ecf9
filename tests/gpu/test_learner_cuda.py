"""On CUDA the packed attention gives what it gives on CPU, by either of its two ways."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.config.schema.learner import OptimizerConfig
from streamrl.learner.batch.packing import PackedBatch, pack
from streamrl.learner.model.policy import PolicyModel
from streamrl.learner.optim.optimizer import make_optimizer
from streamrl.types import RolloutRows

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def make_pack() -> PackedBatch:
    """Four groups of three rows with a shared prompt each, and ragged answers."""
    rng = np.random.default_rng(0)
    parts = []
    for length in (5, 9, 16, 1):
        prompt = rng.integers(0, 64, length)
        for _ in range(3):
            parts += [prompt, rng.integers(0, 64, rng.integers(1, 40))]
    lengths = np.array([len(part) for part in parts])
    count = int(lengths.sum())
    rows = RolloutRows(
        offsets=np.concatenate([[0], np.cumsum(lengths)[1::2]]),
        token_ids=np.concatenate(parts).astype(np.int32),
        token_origin=np.repeat(np.tile([0, 1], 12), lengths).astype(np.uint8),
        rollout_logprobs=np.full(count, -2.0, np.float32),
        token_steps=np.zeros(count, np.int64),
        group=np.arange(12) // 3,
        sample_index=np.arange(12) % 3,
        rewards=np.zeros(12),
        valid=np.ones(12, bool),
    )
    return pack(rows, np.zeros(12), 4096)[0]


def run(device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probs, gradient of the embedding) on CPU in float32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        tie_word_embeddings=True,
    )
    policy = PolicyModel(Qwen3ForCausalLM(config).to(device=device, dtype=dtype))
    logprobs, _ = policy(make_pack().to(torch.device(device)), 0.8)
    logprobs.square().mean().backward()
    return logprobs.detach().float().cpu(), policy.model.model.embed_tokens.weight.grad.float().cpu()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 5e-2)])
def test_cuda_agrees_with_cpu_in_log_probs_and_gradients(dtype: torch.dtype, tolerance: float) -> None:
    for got, expected in zip(run("cuda", dtype), run("cpu", torch.float32), strict=True):
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_8_bit_moments_step_on_cuda_as_on_a_cpu() -> None:
    """There the update is compiled; a moment at the edge between two of its values may round the other way."""
    pytest.importorskip("torchao", reason="pip install -e '.[low-bit]'")
    config, stepped = OptimizerConfig(kind="adamw_8bit", lr=1e-2), {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        start, grads_S = torch.randn(32, 128), torch.randn(4, 32, 128)
        param = start.to(device).requires_grad_()
        optimizer = make_optimizer([param], config)
        for step, grad in enumerate(grads_S):
            optimizer.set_learning_rate(config.lr * (step + 1))
            param.grad = grad.to(device)
            optimizer.step()
        stepped[device] = param.detach().cpu() - start
    torch.testing.assert_close(stepped["cuda"], stepped["cpu"], rtol=0.0, atol=0.1 * config.lr)
