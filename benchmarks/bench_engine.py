"""The torch engine against `transformers.generate`: useful tokens a second at mixed lengths, same threads.

Both sample from the same weights the same numbers of tokens: lengths are lognormal, with 8 and 256 two sigmas from
the median, and cut there; prompts have 8 to 16 tokens. transformers takes batches of 64 and runs each to its longest
request; the engine has 64 slots, runs in deterministic mode, and gives log-probs as well. The two run in turns; a
figure is the median of the rounds.

Also: what each way to multiply rows costs (`streamrl.engines.torch.products`); the time of one decode step of the tiny
model, of a weight load, of the quickstart's batch of 512, and until the
first token of a conversation's second turn, whose first one had 2,000 tokens.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from engine_parts.rungs import ratios
from report import Report
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from streamrl.engines.torch import TorchEngine
from streamrl.system.processor import strict_variables
from streamrl.types import GenerationRequest, GenerationResult, SamplingParams, UpdateMode, Version

SLOTS = 64
MAX_LENGTH = 272
SHORTEST, LONGEST = 8, 256
SIZES = {
    "tiny": {
        "vocab_size": 20,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
    "30M": {
        "vocab_size": 8192,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
}
WANTED_RATIO = {"tiny": 8.0, "30M": 4.0}


def build_model(size: str, context: int = 512) -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        **SIZES[size],
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config).eval()


def mixed_lengths(number: int) -> list[int]:
    """Lognormal lengths in a random order: the quantiles themselves, so that no figure hangs on a lucky draw."""
    normal = statistics.NormalDist(math.log(SHORTEST * LONGEST) / 2, math.log(LONGEST / SHORTEST) / 4)
    quantiles = [math.exp(normal.inv_cdf((i + 0.5) / number)) for i in range(number)]
    lengths = np.clip(quantiles, SHORTEST, LONGEST).astype(int)
    return np.random.default_rng(1).permutation(lengths).tolist()


def mixed_requests(vocab: int, number: int, name: str) -> list[GenerationRequest]:
    random = np.random.default_rng(2)
    return [
        GenerationRequest(
            f"{name}{i}",
            random.integers(3, vocab, random.integers(8, 17), dtype=np.int32),
            i,
            SamplingParams(max_new_tokens=length),
            (),
        )
        for i, length in enumerate(mixed_lengths(number))
    ]


def generate_with_transformers(model: PreTrainedModel, requests: list[GenerationRequest]) -> None:
    for start in range(0, len(requests), SLOTS):
        batch = requests[start : start + SLOTS]
        width = max(len(request.prompt_ids) for request in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(batch):
            ids[row, width - len(request.prompt_ids) :] = torch.from_numpy(request.prompt_ids)
            mask[row, width - len(request.prompt_ids) :] = 1
        longest = max(request.sampling.max_new_tokens for request in batch)
        with torch.inference_mode():
            model.generate(ids, attention_mask=mask, do_sample=True, top_k=0, top_p=1.0, max_new_tokens=longest)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(report: Report, size: str, number: int, rounds: int) -> None:
    model = build_model(size)
    requests = mixed_requests(SIZES[size]["vocab_size"], number, size)
    engine = TorchEngine(model, Version(0, 0), slots=SLOTS, max_length=MAX_LENGTH, kv_bytes=2**30)
    engine.self_test()
    tokens = sum(request.sampling.max_new_tokens for request in requests)
    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(seconds(lambda: engine.generate(requests)))
        theirs.append(seconds(lambda: generate_with_transformers(model, requests)))
    what = f"{size}, {number} requests through {SLOTS} slots"
    report.add(f"{what}: engine", tokens / statistics.median(ours), "useful tokens/s")
    report.add(f"{what}: transformers", tokens / statistics.median(theirs), "useful tokens/s")
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    report.add(f"{what}: ratio", ratio, "x", at_least=WANTED_RATIO[size])


def decode_steps(report: Report, rows: int) -> None:
    engine = TorchEngine(build_model("tiny"), Version(0, 0), slots=rows, max_length=64, kv_bytes=2**28)
    sampling = SamplingParams(max_new_tokens=40)
    prompts = np.random.default_rng(0).integers(3, 20, (rows, 6), dtype=np.int32)
    engine.submit([GenerationRequest(str(i), ids, i, sampling, ()) for i, ids in enumerate(prompts)])
    engine.step()
    times = [seconds(engine.step) for _ in range(38)]
    report.add(f"tiny, one decode step of {rows} rows", 1e3 * statistics.median(times), "ms")


def rungs(report: Report) -> None:
    taken, found = ratios()
    for way, by_rows in found.items():
        for rows, ratio in by_rows.items():
            # What tiles may cost where nothing quicker holds.
            bound = {"at_least": 0.9} if (taken, way, rows) == ("tiles", "tiles", 64) else {}
            report.add(f"tiny, a decode step of {rows} rows, {way} over plain", ratio, "x", **bound)
    report.add(f"the way that is taken here: {taken}", 1, "")


def quickstart_batch(report: Report, rounds: int) -> None:
    model = build_model("tiny")
    engine = TorchEngine(model, Version(0, 0), slots=256, max_length=16, kv_bytes=2**28)
    random = np.random.default_rng(0)
    sampling = SamplingParams(max_new_tokens=5)
    prompts = [random.integers(3, 20, random.integers(4, 8), dtype=np.int32) for _ in range(64)]
    requests = [
        GenerationRequest(f"{g}/{i}", prompt, 8 * g + i, sampling, (2,))
        for g, prompt in enumerate(prompts)
        for i in range(8)
    ]
    times = [seconds(lambda: engine.generate(requests)) for _ in range(5 * rounds)]
    report.add("quickstart batch: 64 groups x 8, 256 slots", 1e3 * statistics.median(times), "ms")
    report.add("quickstart batch: fastest", 1e3 * min(times), "ms")
    report.add("quickstart batch", 512 / statistics.median(times), "rollouts/s")
    weights = model.state_dict()
    loads = [seconds(lambda: engine.load_weights(weights, Version(0, 1), UpdateMode.KEEP)) for _ in range(20)]
    report.add("tiny, weight load", 1e3 * statistics.median(loads), "ms", at_most=1)


def second_turn(report: Report, rounds: int, tokens: int = 2000, told: int = 20) -> None:
    """Until its first token, with what the first turn left in the cache, against the first turn's, and against a second
    turn that finds nothing: both read the same tokens."""
    engine = TorchEngine(build_model("30M", 4096), Version(0, 0), slots=2, max_length=tokens + 64, kv_bytes=2**30)
    random, sampling = np.random.default_rng(0), SamplingParams(max_new_tokens=1)
    times: dict[str, list[float]] = {"first": [], "second": [], "second, nothing kept": []}

    def answered(name: str, request: GenerationRequest) -> GenerationResult:
        start = time.perf_counter()
        (result,) = engine.generate([request])
        times[name].append(time.perf_counter() - start)
        return result

    for number in range(rounds + 1):
        prompt = random.integers(3, 8192, tokens, dtype=np.int32)
        first = GenerationRequest("first", prompt, 0, sampling, (), conversation=str(number))
        said, more = answered("first", first).token_ids, random.integers(3, 8192, told, dtype=np.int32)
        second = replace(first, prompt_ids=np.concatenate((prompt, said, more)), opening=tokens)
        kept, anew = answered("second", second), answered("second, nothing kept", replace(second, conversation=""))
        assert kept.logprobs.tobytes() == anew.logprobs.tobytes(), "kept or not, the bits are the same"
    what = f"30M, {tokens} tokens, then {told} more: until the first token"
    for name, taken in times.items():
        report.add(f"{what}, {name} turn", 1e3 * statistics.median(taken[1:]), "ms")
    ratios = [second / first for second, first in zip(times["second"], times["first"], strict=True)]
    report.add(f"{what}, second turn over first", statistics.median(ratios[1:]), "x", at_most=0.2)


def main() -> int:
    parser = argparse.ArgumentParser(description="torch engine against transformers.generate")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads of both sides")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds; figures are medians")
    parser.add_argument("--models", default="tiny,30M", help="which models to compare")
    options = parser.parse_args()
    # As in each part of a run that computes with such an engine; nothing was computed yet.
    os.environ.update(strict_variables(os.environ))
    torch.set_num_threads(options.threads)
    report = Report("engine")
    for rows in (64, 256):
        decode_steps(report, rows)
    rungs(report)
    quickstart_batch(report, options.rounds)
    second_turn(report, options.rounds)
    for size in options.models.split(","):
        for number in (64, 256):
            compare(report, size, number, options.rounds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
