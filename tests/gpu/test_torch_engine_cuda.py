"""The torch engine on a CUDA device: the same distribution as on the CPU, and no memory but what was asked for."""

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.engines.torch import TorchEngine
from streamrl.types import GenerationRequest, SamplingParams, UpdateMode, Version, VersionSpan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
VOCAB = 61


def tiny_model(*, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    return Qwen3ForCausalLM(config).eval()


def engine_of(model: Qwen3ForCausalLM, *, slots: int = 8) -> TorchEngine:
    return TorchEngine(
        model, Version(0, 0), slots=slots, max_length=400, kv_bytes=2**26, device="cuda", deterministic=False
    )


def requests_of(*, number: int, **sampling) -> list[GenerationRequest]:
    random = np.random.default_rng(0)
    params = SamplingParams(**{"max_new_tokens": 20, **sampling})
    sizes = random.integers(1, 300, number)
    return [
        GenerationRequest(str(i), random.integers(0, VOCAB, size, dtype=np.int32), i, params, ())
        for i, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"top_p": 0.8, "top_k": 9, "min_p": 0.01}])
def test_logprobs_on_cuda_are_those_of_the_same_tokens_on_the_cpu(sampling: dict):
    model = tiny_model(seed=0)
    for request, result in zip(
        requests_of(number=20, **sampling), engine_of(model).generate(requests_of(number=20, **sampling)), strict=True
    ):
        ids = torch.from_numpy(np.concatenate((request.prompt_ids, result.token_ids)).astype(np.int64))[None]
        with torch.no_grad():
            logits = model(ids).logits[0, len(request.prompt_ids) - 1 : -1]
        chosen = torch.from_numpy(result.token_ids.astype(np.int64))[:, None]
        plain = logits.log_softmax(-1).gather(1, chosen)[:, 0].numpy()
        if "top_p" in sampling:
            assert (result.logprobs >= plain - 1e-3).all()  # truncation only ever raises a log-prob
        else:
            np.testing.assert_allclose(result.logprobs, plain, atol=2e-3)


@pytest.mark.parametrize("mode", [UpdateMode.KEEP, UpdateMode.RECOMPUTE])
def test_weights_from_host_memory_are_taken_up_in_flight(mode: UpdateMode):
    engine = engine_of(tiny_model(seed=0))
    engine.submit(requests_of(number=6))
    for _ in range(5):
        assert engine.step() == []
    engine.load_weights(tiny_model(seed=1).state_dict(), Version(0, 1), mode)
    results = []
    while engine.has_work:
        results += engine.step()
    spans = (VersionSpan(0, Version(0, 0)), VersionSpan(5, Version(0, 1)))
    assert [result.version_spans for result in results] == [spans] * 6


def test_generation_allocates_no_lasting_device_memory():
    engine = engine_of(tiny_model(seed=0))
    engine.generate(requests_of(number=20))
    before = torch.cuda.memory_allocated()
    engine.generate(requests_of(number=20))
    assert torch.cuda.memory_allocated() == before
