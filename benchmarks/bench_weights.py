"""The way of the weights: a version through shared memory, deltas made and applied, and updates in whole runs.

Deltas are of 500 MB of tensors in the proportions of a small Qwen model. Changed elements lie anywhere and get random
bits, which no coding makes smaller; the steps of an optimiser are measured beside that. Rates are of the full bytes of
a version, sizes a share of them. A figure is the median of the rounds; "of one processor" is by the processor time of
all threads and not by the clock, so that a busy machine shows less in it.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import xxhash
from report import Report
from weights_parts import publish, runs

from streamrl.types import Version
from streamrl.weights.delta.delta import Buffer, apply_delta, encode_delta
from streamrl.weights.manifest import ITEM_BYTES, TensorEntry, WeightManifest, combined_digest

HIDDEN, INNER, VOCAB = 896, 4864, 151_936
LAYER = ((HIDDEN, HIDDEN), (128, HIDDEN), (128, HIDDEN), (HIDDEN, HIDDEN), *[(INNER, HIDDEN)] * 3, (HIDDEN,), (HIDDEN,))
NUMBERS = {2: np.uint16, 4: np.uint32}

FIRST_CALL = """
import sys, time
import numpy as np
from streamrl.weights.delta.kernels import apply, encode, encoded_words
started = time.monotonic()
for numbers in (np.uint16, np.uint32):
    old = np.zeros(64, numbers)
    old.flags.writeable = False
    out = np.empty(encoded_words(64, old.itemsize), np.uint32)
    stream = out[: encode(old, old, out)].view(np.uint8)
    stream.flags.writeable = False
    apply(stream, 0, old.copy())
print(time.monotonic() - started)
"""


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds of one call: of the clock, and of all processors."""

    wall_s: float
    cpu_s: float


def shapes(elements: int) -> Iterator[tuple[int, ...]]:
    """Embeddings, then layers, up to about so many elements."""
    embedding = (min(VOCAB, elements // 3 // HIDDEN), HIDDEN)
    yield embedding
    left = elements - math.prod(embedding)
    while True:
        for shape in LAYER:
            left -= math.prod(shape)
            if left < 0:
                return
            yield shape


def described(step: int, dtype: str, plan: list[tuple[int, ...]], content: np.ndarray) -> WeightManifest:
    entries, offset, raw = [], 0, content.view(np.uint8)
    for number, shape in enumerate(plan):
        size = math.prod(shape) * ITEM_BYTES[dtype]
        digest = xxhash.xxh3_64_hexdigest(raw[offset : offset + size])
        entries.append(TensorEntry(f"tensor.{number}", dtype, shape, offset, size, digest))
        offset += size
    return WeightManifest(
        run_id="bench",
        version=Version(0, step),
        source="shm",
        location="",
        tensors=tuple(entries),
        total_bytes=offset,
        digest=combined_digest(entries),
    )


def version(dtype: str, num_bytes: int) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Shapes and bits of normal numbers of deviation 0.02, each a million of them again and again."""
    plan = list(shapes(num_bytes // ITEM_BYTES[dtype]))
    numbers = (0.02 * np.random.default_rng(0).standard_normal(2**20)).astype(np.float32)
    bits = bfloat16(numbers) if ITEM_BYTES[dtype] == 2 else numbers.view(np.uint32)
    return plan, np.resize(bits, sum(map(math.prod, plan)))


def bfloat16(numbers: np.ndarray) -> np.ndarray:
    bits = numbers.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def measured(rounds: int, call: Callable[[], object]) -> Rates:
    call()
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.monotonic(), time.process_time()
        call()
        walls.append(time.monotonic() - wall)
        cpus.append(time.process_time() - cpu)
    return Rates(statistics.median(walls), statistics.median(cpus))


def changed(report: Report, dtype: str, num_bytes: int, share: float, rounds: int, *, wanted: bool) -> None:
    """A share of the elements gets other bits."""
    plan, old = version(dtype, num_bytes)
    random = np.random.default_rng(1)
    new = old.copy()
    places = random.integers(0, len(old), int(share * len(old)))
    new[places] = random.integers(0, 2 ** (8 * old.itemsize), len(places), dtype=old.dtype)
    before, after = described(1, dtype, plan, old), described(2, dtype, plan, new)
    made: list[Buffer] = []

    def encode() -> None:
        made[:] = encode_delta(before, after, old, new) or []

    encoding = measured(rounds, encode)
    delta = b"".join(made)
    target = np.zeros_like(old)
    applying = measured(rounds, lambda: apply_delta(delta, before, after, target, base=old))
    if not np.array_equal(target, new):
        raise RuntimeError(f"a delta of {dtype} does not come to the newer version")
    name, size = f"{dtype}, {share:.1%} changed", after.total_bytes / 1e9
    report.add(f"{name}: encode", size / encoding.wall_s, "GB/s", at_least=3 if wanted else None)
    report.add(f"{name}: encode, of one processor", size / encoding.cpu_s, "GB/s")
    report.add(f"{name}: apply", size / applying.wall_s, "GB/s", at_least=1 if wanted else None)
    report.add(f"{name}: apply, of one processor", size / applying.cpu_s, "GB/s")
    report.add(f"{name}: size", 100 * len(delta) / after.total_bytes, "%", at_most=4 if wanted else None)


def optimiser(report: Report, dtype: str, rate: float, elements: int = 2**24) -> None:
    """Numbers of deviation 0.02 after one step of Adam, which moves each by up to the learning rate."""
    random = np.random.default_rng(2)
    numbers = (0.02 * random.standard_normal(elements)).astype(np.float32)
    moved = numbers + (rate * np.clip(random.standard_normal(elements), -1, 1)).astype(np.float32)
    old, new = (bfloat16(each) if dtype == "bfloat16" else each.view(np.uint32) for each in (numbers, moved))
    before, after = (described(step, dtype, [(elements,)], each) for step, each in ((1, old), (2, new)))
    made = encode_delta(before, after, old, new, max_share=1.0)
    name = f"{dtype}, an optimiser's step of {rate:g}"
    report.add(f"{name}: changed elements", 100 * float((old != new).mean()), "%")
    report.add(f"{name}: size", 100 * sum(map(len, made or ())) / after.total_bytes, "%")


def plain(report: Report, dtype: str, num_bytes: int, rounds: int) -> None:
    """What a first try would do: numpy's comparison, differences of indexes, zlib at its fastest level."""
    _, old = version(dtype, num_bytes)
    random = np.random.default_rng(1)
    new = old.copy()
    places = random.integers(0, len(old), len(old) // 100)
    new[places] = random.integers(0, 2 ** (8 * old.itemsize), len(places), dtype=old.dtype)

    def encode() -> int:
        indexes = np.flatnonzero(old != new)
        gaps = np.diff(indexes, prepend=0).astype(np.uint32)
        return len(zlib.compress(gaps, 1)) + len(zlib.compress(new[indexes], 1))

    rates = measured(rounds, encode)
    report.add(f"{dtype}, 1.0% changed: numpy and zlib, encode", old.nbytes / 1e9 / rates.wall_s, "GB/s")
    report.add(f"{dtype}, 1.0% changed: numpy and zlib, size", 100 * encode() / old.nbytes, "%")


def first_calls(report: Report) -> None:
    """How long a process waits for its kernels: once on a machine, and whenever it starts."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("kernels, compiled", "kernels, from the cache"):
            words = [sys.executable, "-c", FIRST_CALL]
            answer = subprocess.run(words, env={**os.environ, "NUMBA_CACHE_DIR": folder}, check=True, stdout=-1)
            report.add(name, float(answer.stdout), "s")


def main() -> int:
    parser = argparse.ArgumentParser(description="deltas of weights: speed and size")
    parser.add_argument("--rounds", type=int, default=7, help="figures are medians of so many")
    parser.add_argument("--megabytes", type=int, default=500, help="of a version")
    parser.add_argument("--steps", type=int, default=60, help="of a whole run")
    options = parser.parse_args()
    size = 10**6 * options.megabytes
    report = Report("weights")
    publish.measure(report, options.rounds)
    runs.measure(report, options.steps)
    for dtype in ("bfloat16", "float32"):
        for share in (0.001, 0.01, 0.1):
            changed(report, dtype, size, share, options.rounds, wanted=share <= 0.01)
        plain(report, dtype, size // 10, 3)
        for rate in (1e-6, 1e-5):
            optimiser(report, dtype, rate)
    first_calls(report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
