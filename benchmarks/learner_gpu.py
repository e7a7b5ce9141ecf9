"""Whole steps of a Qwen3-0.6B-shaped model on one GPU, by the learner's own backend: packs of 16k tokens, bfloat16 with
float32 masters, forward, backward, clipping and AdamW.

MFU counts the arithmetic that the model needs, not what is done again: 6 operations for each parameter of a matrix and
token (the head at trained tokens alone), and 12 x layers x heads x head_dim for each pair of query and key, halved by
causality (Chowdhery et al. 2022, appendix B). The peak is the vendor's for dense bfloat16.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from learner_parts import QWEN3_600M, make_model, make_rows
from report import Report

from streamrl.config.learner_tables import AlgorithmConfig, OptimizerConfig
from streamrl.learner.fsdp import build
from streamrl.learner.packing import pack
from streamrl.learner.process_group import open_group
from streamrl.learner.rows import count_targets, row_targets
from streamrl.types import RolloutRows

PEAK = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
"""Operations a second, by a part of the device's name."""
PACK_TOKENS = 16_384


def measure(report: Report, rounds: int, rows_count: int = 64) -> None:
    """Tokens a second, MFU and peak memory."""
    device, config = torch.device("cuda"), QWEN3_600M
    rows = make_rows(rows_count, config.vocab_size, mean=1000.0, most=4096)
    with tempfile.TemporaryDirectory() as folder:
        group = open_group(0, 1, Path(folder) / "meeting", device=device)
        backend = build(
            make_model(config),
            optimizer=OptimizerConfig(),
            algorithm=AlgorithmConfig(),
            total_steps=100,
            temperature=1.0,
            group=group,
            dtype=torch.bfloat16,
        )
        packs = pack(rows, np.random.default_rng(1).standard_normal(rows.num_rows), PACK_TOKENS)
        total, times = count_targets(rows), []
        for number in range(rounds + 2):
            torch.cuda.synchronize()
            started = time.monotonic()
            backend.step(packs, total)
            torch.cuda.synchronize()
            if number >= 2:
                times.append(time.monotonic() - started)
        group.close()
    took, name = statistics.median(times), torch.cuda.get_device_name()
    report.add(f"{name}: tokens a second", rows.lengths().sum() / took, "tokens/s")
    report.add(f"{name}: peak memory", torch.cuda.max_memory_allocated() / 1e9, "GB")
    peak = next((value for part, value in PEAK.items() if part in name), None)
    if peak is None:
        report.add(f"{name}: arithmetic", operations(rows) / took / 1e12, "Tflop/s")
    else:
        report.add(f"{name}: MFU", 100 * operations(rows) / took / peak, "%", at_least=35)


def operations(rows: RolloutRows) -> float:
    """Of one forward and backward over `rows`."""
    config, lengths = QWEN3_600M, rows.lengths().astype(np.float64)
    heads = config.num_attention_heads * config.head_dim
    attention = config.hidden_size * (2 * heads + 2 * config.num_key_value_heads * config.head_dim)
    matrices = config.num_hidden_layers * (attention + 3 * config.hidden_size * config.intermediate_size)
    head = config.hidden_size * config.vocab_size
    pairs = (lengths**2).sum() / 2
    linear = 6 * (matrices * lengths.sum() + head * row_targets(rows).sum())
    return linear + 12 * config.num_hidden_layers * heads * pairs
