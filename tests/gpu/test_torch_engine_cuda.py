"""The torch engine on a CUDA device: the same distribution as on the CPU, and no memory but what was asked for."""

import gc

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from streamrl.engines.torch import TorchEngine
from streamrl.errors import ConfigError
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
    # The pass that was on its way when the version came is of the version before.
    spans = (VersionSpan(0, Version(0, 0)), VersionSpan(6, Version(0, 1)))
    assert [result.version_spans for result in results] == [spans] * 6


def test_generation_allocates_no_lasting_device_memory():
    engine = engine_of(tiny_model(seed=0))
    engine.generate(requests_of(number=20))
    before = torch.cuda.memory_allocated()
    engine.generate(requests_of(number=20))
    assert torch.cuda.memory_allocated() == before


def test_a_kv_cache_that_does_not_fit_is_refused_with_the_size_that_does():
    total = torch.cuda.mem_get_info()[1]
    before = torch.cuda.memory_allocated()
    with pytest.raises(ConfigError, match=r"set rollout\.kv_bytes to at most (\d+)") as caught:
        TorchEngine(tiny_model(seed=0), Version(0, 0), slots=10**7, max_length=400, kv_bytes=2 * total, device="cuda")
    most = int(str(caught.value).rsplit(" ", 1)[1])
    del caught
    gc.collect()
    assert torch.cuda.memory_allocated() == before, "a refusal leaves nothing"
    assert total / 2 < most < total
    engine = TorchEngine(
        tiny_model(seed=0), Version(0, 0), slots=8, max_length=400, kv_bytes=most, device="cuda", deterministic=False
    )
    assert len(engine.generate(requests_of(number=4))) == 4


def test_deterministic_tokens_and_log_probs_do_not_depend_on_the_batch():
    model, requests = tiny_model(seed=0), requests_of(number=20)
    options = {"slots": 8, "max_length": 400, "kv_bytes": 2**26, "device": "cuda", "deterministic": True}
    engine = TorchEngine(model.to(torch.bfloat16), Version(0, 0), **options)
    engine.self_test()
    together = engine.generate(requests)
    for request, expected in zip(requests, together, strict=True):
        (alone,) = engine.generate([request])
        assert alone.token_ids.tolist() == expected.token_ids.tolist()
        assert alone.logprobs.tobytes() == expected.logprobs.tobytes()


def test_a_version_that_lies_on_the_gpu_is_taken_up_as_one_of_the_host():
    model, requests = tiny_model(seed=1), requests_of(number=6)
    engine, found = engine_of(tiny_model(seed=0)), []
    for version, tensors in enumerate((model.state_dict(), model.cuda().state_dict()), start=1):
        engine.load_weights(engine.prepare(tensors), Version(0, version), UpdateMode.KEEP)
        found.append([result.token_ids.tolist() for result in engine.generate(requests)])
    assert found[0] == found[1]


def test_closing_gives_the_memory_back():
    gc.collect()
    before = torch.cuda.memory_allocated()
    engine = engine_of(tiny_model(seed=0))
    engine.generate(requests_of(number=4))
    engine.close()
    del engine
    gc.collect()
    assert torch.cuda.memory_allocated() == before
