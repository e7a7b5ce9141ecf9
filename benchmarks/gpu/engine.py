"""The torch engine on one GPU: decode steps, mixed lengths, the price of determinism, updates, bandwidth.

    python -m gpu.engine small|deterministic|large

Prompts have 128 random tokens, weights are random, numbers are bfloat16. A decode step is the median over many, while
nothing starts or ends. Useful tokens are those that requests asked for.
"""

import statistics
import sys
import time

import numpy as np
import torch
from transformers import PreTrainedModel

from gpu.rows import tell
from gpu.shapes import BANDWIDTH, model_of, of_device
from streamrl.engines.torch import TorchEngine
from streamrl.types import GenerationRequest, SamplingParams, UpdateMode, Version

PROMPT = 128
STEPS = 100
MAX_LENGTH = 1024


def requests_of(lengths: list[int], name: str) -> list[GenerationRequest]:
    random = np.random.default_rng(len(lengths))
    return [
        GenerationRequest(
            f"{name}{i}",
            random.integers(0, 150_000, PROMPT).astype(np.int32),
            i,
            SamplingParams(max_new_tokens=length),
            (),
        )
        for i, length in enumerate(lengths)
    ]


def engine_of(model: PreTrainedModel, slots: int, kv_gib: int, *, deterministic: bool = False) -> TorchEngine:
    return TorchEngine(
        model,
        Version(0, 0),
        slots=slots,
        max_length=MAX_LENGTH,
        kv_bytes=kv_gib * 2**30,
        device="cuda",
        deterministic=deterministic,
    )


def step_ms(engine: TorchEngine, rows: int) -> float:
    """Milliseconds of a decode step of `rows` rows, the median."""
    engine.submit(requests_of([STEPS + 40] * rows, f"step{rows}-"))
    for _ in range(20):
        engine.step()
    times = []
    for _ in range(STEPS):
        begun = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begun)
    while engine.has_work:
        engine.step()
    return 1e3 * statistics.median(times)


def rate(engine: TorchEngine, lengths: list[int], name: str) -> float:
    """Useful tokens a second from the first request to the last token."""
    begun = time.perf_counter()
    results = engine.generate(requests_of(lengths, name))
    return sum(len(result.token_ids) for result in results) / (time.perf_counter() - begun)


def mixed_lengths(count: int) -> list[int]:
    """Lognormal with a median of 148, from 8 to 800."""
    drawn = np.random.default_rng(0).lognormal(5.0, 1.0, count)
    return np.clip(drawn, 8, 800).astype(int).tolist()


def small() -> None:
    model, begun = model_of("0.6B"), time.perf_counter()
    engine = engine_of(model, 256, 40)
    torch.cuda.synchronize()
    tell("engine made, graphs captured", time.perf_counter() - begun, "s", at_most=20)
    engine.generate(requests_of([8] * 256, "warm"))
    tell("decode step, 1 row", step_ms(engine, 1), "ms")
    for rows, most in ((64, 3.0), (256, 5.5)):
        took = step_ms(engine, rows)
        tell(f"decode step, {rows} rows", took, "ms", at_most=most)
        tell(f"decode, {rows} rows", 1e3 * rows / took, "tokens/s", at_least={64: 20_000, 256: 45_000}[rows])
    tell("256 rows of 256 tokens, whole", rate(engine, [256] * 256, "whole"), "tokens/s")
    tell("256 rows of lognormal lengths to 800", rate(engine, mixed_lengths(256), "mixed"), "tokens/s", at_least=25_000)
    ours = rate(engine, [64] * 64, "against")
    theirs = of_transformers(model, 64, 64)
    tell("transformers.generate, 64 rows", theirs, "tokens/s")
    tell("against transformers.generate, 64 rows of 64 tokens", ours / theirs, "x", at_least=15)
    tell("log-probs, farthest from the model's", farthest(engine, model), "", at_most=5e-2)
    updates(engine, model)
    tell("memory of the process", torch.cuda.memory_reserved() / 2**30, "GiB")


def of_transformers(model: PreTrainedModel, rows: int, new: int) -> float:
    ids = torch.randint(0, 150_000, (rows, PROMPT), device="cuda")
    settings = {"do_sample": True, "top_k": 0, "min_new_tokens": new, "max_new_tokens": new, "pad_token_id": 0}
    model.generate(ids, attention_mask=torch.ones_like(ids), **settings | {"min_new_tokens": 4, "max_new_tokens": 4})
    torch.cuda.synchronize()
    begun = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    torch.cuda.synchronize()
    return rows * new / (time.perf_counter() - begun)


def farthest(engine: TorchEngine, model: PreTrainedModel) -> float:
    requests = requests_of([64] * 16, "logprobs")
    most = 0.0
    for request, result in zip(requests, engine.generate(requests), strict=True):
        ids = torch.from_numpy(np.concatenate((request.prompt_ids, result.token_ids)).astype(np.int64)).cuda()[None]
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0, PROMPT - 1 :].float()
        chosen = logits.log_softmax(-1).gather(1, ids[0, PROMPT:, None])[:, 0].cpu().numpy()
        most = max(most, float(abs(chosen - result.logprobs).max()))
    return most


def updates(engine: TorchEngine, model: PreTrainedModel) -> None:
    """A version from the host's memory, and one that lies on the device, while 64 rows decode."""
    on_host = {name: tensor.cpu().pin_memory() for name, tensor in model.state_dict().items()}
    for where, tensors in (("host", on_host), ("device", model.state_dict())):
        engine.submit(requests_of([400] * 64, where))
        taken, stood = [], []
        for version in range(1, 8):
            for _ in range(10):
                engine.step()
            begun = time.perf_counter()
            prepared = engine.prepare(tensors)
            ready = time.perf_counter()
            engine.load_weights(prepared, Version(0, version), UpdateMode.KEEP)
            torch.cuda.synchronize()
            taken.append(ready - begun)
            stood.append(time.perf_counter() - ready)
        tell(f"1.19 GB from the {where}: copied beside the steps", statistics.median(taken), "s")
        tell(f"1.19 GB from the {where}: generation stands still", statistics.median(stood), "s", at_most=0.02)
        while engine.has_work:
            engine.step()


def deterministic() -> None:
    model = model_of("0.6B")
    plain = engine_of(model, 64, 10)
    plain.generate(requests_of([8] * 64, "warm"))
    free = step_ms(plain, 64)
    plain.close()
    engine, begun = engine_of(model, 64, 10, deterministic=True), time.perf_counter()
    engine.self_test()
    tell("deterministic: self-test", time.perf_counter() - begun, "s")
    exact = step_ms(engine, 64)
    tell("deterministic: decode step, 64 rows", exact, "ms")
    tell("deterministic: price", 100 * (exact / free - 1), "%")


def large() -> None:
    """8B: the weights are 16 GB, and reading them is what a step of few rows takes."""
    model = model_of("8B")
    read = sum(p.nbytes for p in model.parameters()) - model.get_input_embeddings().weight.nbytes
    engine = engine_of(model, 16, 8)
    del model
    torch.cuda.empty_cache()
    engine.generate(requests_of([8] * 16, "warm"))
    for rows, least in ((1, 60.0), (16, 60.0)):
        took = step_ms(engine, rows) / 1e3
        keys = rows * (PROMPT + STEPS // 2) * 36 * 2 * 8 * 128 * 2
        share = 100 * (read + keys) / took / of_device(BANDWIDTH)
        tell(f"8B: decode step, {rows} rows", 1e3 * took, "ms")
        tell(f"8B: of the memory's bandwidth, {rows} rows", share, "%", at_least=least)
    tell("8B: memory of the process", torch.cuda.memory_reserved() / 2**30, "GiB")


if __name__ == "__main__":
    {"small": small, "deterministic": deterministic, "large": large}[sys.argv[1]]()
