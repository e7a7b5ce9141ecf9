"""Decode steps of the tiny model by each way to multiply rows, in turns: `python -m engine_parts.rungs` prints the
tokens a second as JSON, with the way that this process would take.

MKL reads its mode once for a process, so strict mode is measured in a child that was started with it, beside one that
was not.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from streamrl.engines.torch import TorchEngine
from streamrl.engines.torch.eager.own_products import OwnProducts
from streamrl.engines.torch.ladder import SIZES
from streamrl.engines.torch.products import OneDnnProducts, PlainProducts, RowProducts, Rung, TiledProducts
from streamrl.system.processor import STRICT, VARIABLE
from streamrl.types import GenerationRequest, SamplingParams, Version

HERE = Path(__file__).parents[1]
ROWS = (4, 64, 256)
ROUNDS = 5
STEPS = 38
WAYS: Mapping[str, RowProducts] = {
    "plain": PlainProducts(4),
    "onednn": OneDnnProducts(2),
    "tiles of 16": TiledProducts(),
    "tiles": TiledProducts(SIZES),
    "own": OwnProducts(),
}
"""As they stand in `streamrl.engines.torch.ladder`, and tiles of one size."""

Rates = dict[str, dict[str, float]]
"""Tokens a second by way, then by rows."""


def rates(model: PreTrainedModel) -> Rates:
    """Medians of rounds in which the ways take turns."""
    taken: dict[str, dict[str, list[float]]] = {way: {str(rows): [] for rows in ROWS} for way in WAYS}
    for _ in range(ROUNDS):
        for rows in ROWS:
            for way, products in WAYS.items():
                taken[way][str(rows)].append(rows / _step_s(model, products, rows))
    return {way: {rows: statistics.median(all_) for rows, all_ in by.items()} for way, by in taken.items()}


def _step_s(model: PreTrainedModel, products: RowProducts, rows: int) -> float:
    engine = TorchEngine(model, Version(0, 0), slots=rows, max_length=64, kv_bytes=2**28, products=[products])
    sampling = SamplingParams(max_new_tokens=STEPS + 2)
    prompts = np.random.default_rng(0).integers(3, 20, (rows, 6), dtype=np.int32)
    engine.submit([GenerationRequest(str(i), ids, i, sampling, ()) for i, ids in enumerate(prompts)])
    engine.step()
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    engine.close()
    return statistics.median(times)


def rates_in_a_child(environment: Mapping[str, str]) -> tuple[str, Rates]:
    """(the rung that such a process takes, what it measures)."""
    command = [sys.executable, "-m", "engine_parts.rungs"]
    done = subprocess.run(command, cwd=HERE, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(done.stdout)
    return answer["rung"], answer["rates"]


def ratios() -> tuple[str, dict[str, dict[int, float]]]:
    """(the rung that the running system takes here, tokens a second over those of plain products, by way and rows).
    `strict` is among them where this processor has it."""
    unset = {name: value for name, value in os.environ.items() if name != VARIABLE}
    _, plain = rates_in_a_child(unset)
    rung, strict = rates_in_a_child({**unset, VARIABLE: STRICT})
    found = {way: {rows: by[str(rows)] / plain["plain"][str(rows)] for rows in ROWS} for way, by in plain.items()}
    if rung == Rung.STRICT:
        found["strict"] = {rows: strict["plain"][str(rows)] / plain["plain"][str(rows)] for rows in ROWS}
    return rung, found


def main() -> None:
    # Here and not above: the command imports this module.
    from bench_engine import build_model

    torch.set_num_threads(1)
    model = build_model("tiny")
    engine = TorchEngine(model, Version(0, 0), slots=4, max_length=64, kv_bytes=2**26)
    engine.self_test()
    arithmetic = engine.stats().arithmetic
    assert arithmetic is not None, "a deterministic engine says how it multiplies"
    print(json.dumps({"rung": arithmetic.rung, "rates": rates(model)}))


if __name__ == "__main__":
    main()
