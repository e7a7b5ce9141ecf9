"""Whole steps of the learner on one GPU, by the backend that a run has: packs, forward, backward, clipping, AdamW.

    python -m gpu.learner [CASE ...]

Numbers are bfloat16 with float32 masters. MFU counts the arithmetic that the model needs and not what is done again:
6 operations for each parameter of a matrix and token (the head at trained tokens alone), and 12 x layers x heads x
head_dim for each pair of query and key, halved by causality (Chowdhery et al. 2022, appendix B). Of adapters, too:
prime-rl's table counts so; the arithmetic that the frozen matrices need is two thirds of it.
"""

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from learner_steps.models import make_rows
from transformers import Qwen3Config

from gpu.rows import tell
from gpu.shapes import PEAK, config_of, model_of, of_device
from streamrl.config.known import LINEAR_LAYERS
from streamrl.config.schema.algorithm import AlgorithmConfig
from streamrl.config.schema.learner import ExecutionConfig, OptimizerConfig
from streamrl.learner.batch.packing import pack
from streamrl.learner.batch.rows import count_targets, row_targets
from streamrl.learner.fsdp import FsdpBackend, on_policy
from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import LearnerGroup, open_group
from streamrl.types import RolloutRows


class Case(NamedTuple):
    """rows: how many, their mean and greatest length. wanted: MFU in percent, and peak memory in GB."""

    shape: str
    pack_tokens: int
    rows: tuple[int, float, int]
    execution: ExecutionConfig
    least_mfu: float | None = None
    most_gb: float | None = None
    lora: int = 0


SHORT, LONG, FEW = (64, 1000.0, 4096), (40, 4000.0, 16_384), (16, 4000.0, 16_384)
AGAIN = ExecutionConfig(activation_checkpointing=True)
CASES = {
    "16k": Case("0.6B", 16_384, SHORT, ExecutionConfig(), 35.0, 40.0),
    "16k compiled": Case("0.6B", 16_384, SHORT, ExecutionConfig(compile=True), 45.0, 40.0),
    "64k computed again": Case("0.6B", 65_536, LONG, AGAIN, 45.0),
    "4B LoRA 64k": Case("4B", 65_536, FEW, AGAIN, 40.0, lora=32),
    "16k by torch": Case("0.6B", 16_384, SHORT, ExecutionConfig(kernels="torch")),
    "64k compiled": Case("0.6B", 65_536, LONG, ExecutionConfig(activation_checkpointing=True, compile=True)),
    "one row of 64k": Case("0.6B", 65_536, (2, 65_536.0, 65_536), AGAIN),
}
STANDARD = ("16k", "64k computed again", "4B LoRA 64k", "16k compiled")
WARM_UP, ROUNDS = 2, 3


def main(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        group = open_group(0, 1, Path(folder) / "meeting", device=torch.device("cuda"))
        for name in names:
            try:
                measure(name, CASES[name], group)
            except torch.OutOfMemoryError as error:
                print(f"{name}: {error}", flush=True)
            gc.collect()
            torch.cuda.empty_cache()
        group.close()


def measure(name: str, case: Case, group: LearnerGroup) -> None:
    config, (count, mean, most) = config_of(case.shape), case.rows
    rows = make_rows(count, config.vocab_size, mean=mean, most=most)
    torch.cuda.reset_peak_memory_stats()
    backend = backend_of(case, group)
    packs = pack(rows, np.random.default_rng(1).standard_normal(rows.num_rows), case.pack_tokens)
    total, times = count_targets(rows), []
    for _ in range(WARM_UP + ROUNDS):
        times.append(seconds(lambda: backend.step(packs, total)))
    took = statistics.median(times[WARM_UP:])
    mfu = 100 * operations(rows, config) / took / of_device(PEAK)
    tell(f"learner, {name}: MFU", mfu, "%", at_least=case.least_mfu)
    tell(f"learner, {name}: tokens a second", float(rows.lengths().sum()) / took, "tokens/s")
    tell(f"learner, {name}: peak memory", torch.cuda.max_memory_allocated() / 1e9, "GB", at_most=case.most_gb)
    tell(f"learner, {name}: first step", times[0], "s")
    tell(f"learner, {name}: step", took, "s")


def backend_of(case: Case, group: LearnerGroup) -> FsdpBackend:
    model = model_of(case.shape, torch.float32)
    policy = adapters(model, case, group) if case.lora else ShardedPolicy(model, group, torch.bfloat16, case.execution)
    return on_policy(policy, optimizer=OptimizerConfig(), algorithm=AlgorithmConfig(), total_steps=100, temperature=1.0)


def adapters(model: torch.nn.Module, case: Case, group: LearnerGroup) -> ShardedPolicy:
    from streamrl.learner.model.adapters import AdapterPolicy, AdapterSettings  # needs the extra `lora`

    settings = AdapterSettings(case.lora, 2.0 * case.lora, tuple(LINEAR_LAYERS), 0)
    return AdapterPolicy(model, group, torch.bfloat16, settings, case.execution)


def seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def operations(rows: RolloutRows, config: Qwen3Config) -> float:
    """Of one forward and backward over `rows`."""
    lengths = rows.lengths().astype(np.float64)
    heads = config.num_attention_heads * config.head_dim
    attention = config.hidden_size * (2 * heads + 2 * config.num_key_value_heads * config.head_dim)
    matrices = config.num_hidden_layers * (attention + 3 * config.hidden_size * config.intermediate_size)
    head = config.hidden_size * config.vocab_size
    pairs = (lengths**2).sum() / 2
    linear = 6 * (matrices * lengths.sum() + head * row_targets(rows).sum())
    return float(linear + 12 * config.num_hidden_layers * heads * pairs)


if __name__ == "__main__":
    main(sys.argv[1:] or list(STANDARD))
