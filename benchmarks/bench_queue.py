"""The replay queue: against `ray.util.queue`, against its own `memory` level, against the machine, and at 1e6 rows.

Records of 1,280 tokens (ids and log-probs, 10 KB); one producer process and one consumer process, and a scorer as the
reward stage is one; durability `disk` unless said. A replica writes what has finished since its last frame: 256 records
a frame at full speed, 64 where the latency is taken. The throughputs of one round are taken in turns; a figure is the
median of the rounds.
"""

import argparse
import asyncio
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import ray
from queue_parts import index
from queue_parts.consumer import Consumer, Measured, Order, settings, touch
from queue_parts.ray_queue import records_per_s
from queue_parts.wire import COMMIT_INTERVAL_S, RECORD_BYTES, processor_s
from report import Report

from streamrl.buffers.queue.replay_queue import ReplayQueue
from streamrl.buffers.segments.places import COMPLETIONS_DIR
from streamrl.buffers.segments.reader import SegmentReader
from streamrl.buffers.segments.writer import Durability
from streamrl.clock import SystemClock

PROGRAMS = Path(__file__).parent
GIB = 2**30


def line(
    folder: Path,
    durability: Durability,
    *,
    frames: int,
    producers: int = 1,
    in_flight: int = 16,
    pause_s: float = 0.0,
    rows: int = 256,
    retain: Literal["all", "covered"] = "covered",
) -> tuple[Measured, Path]:
    """One run of the queue in a fresh run folder. Returns what was measured, and the folder."""
    run = Path(tempfile.mkdtemp(dir=folder))
    started: list[subprocess.Popen[bytes]] = []

    def start_program(name: str, *words: object) -> None:
        started.append(subprocess.Popen([sys.executable, "-m", name, *map(str, words)], cwd=PROGRAMS))

    def start(socket: str) -> None:
        start_program("queue_parts.scorer", socket, run, durability)
        for number in range(producers):
            words = [socket, run, f"replica-{number}", durability, frames, in_flight, pause_s]
            start_program("queue_parts.producer", *words)

    measured = asyncio.run(Consumer(run, durability, rows, retain).consume(start, producers, frames))
    for process in started:
        if process.wait(60):
            raise RuntimeError(f"{process.args} ended with exit code {process.returncode}")
    return measured, run


def throughput(report: Report, folder: Path, rounds: int, frames: int) -> None:
    """Ours on disk and in memory and the peer, in turns.

    As in a running system a log file goes when a checkpoint covers it, and its memory serves again: on a virtual
    machine the first touch of a page of the disk cache costs up to ten times the write.
    """
    rates: dict[str, list[float]] = {name: [] for name in ("disk", "memory", "one", "batch")}
    cpu: list[float] = []
    scorer: list[float] = []
    for _ in range(rounds):
        for durability in ("disk", "memory"):
            measured, run = line(folder, durability, frames=frames)
            shutil.rmtree(run)
            rates[durability].append(measured.records / measured.wall_s)
            if durability == "disk":
                cpu.append(1e6 * measured.cpu_s / measured.records)
                scorer.append(1e6 * measured.scorer_cpu_s / measured.records)
        rates["one"].append(records_per_s(1500, 1))
        rates["batch"].append(records_per_s(150 * 64, 64))
    middle = {name: statistics.median(values) for name, values in rates.items()}
    report.add("accept + consume, disk", middle["disk"], "records/s")
    report.add("ray.util.queue one by one", middle["one"], "records/s")
    report.add("ray.util.queue in batches of 64", middle["batch"], "records/s")
    report.add("disk over ray.util.queue one by one", ratio(rates, "disk", "one"), "x", at_least=60)
    report.add("disk over ray.util.queue in batches of 64", ratio(rates, "disk", "batch"), "x", at_least=5)
    report.add("disk over memory", ratio(rates, "disk", "memory"), "x", at_least=0.7)
    report.add("processor time of both sides for a record", statistics.median(cpu), "microseconds", at_most=25)
    report.add("processor time of the scorer for a record", statistics.median(scorer), "microseconds")


def ratio(rates: dict[str, list[float]], ours: str, other: str) -> float:
    return statistics.median(a / b for a, b in zip(rates[ours], rates[other], strict=True))


def latency(report: Report, folder: Path) -> None:
    """Accept latency of frames that come one by one, less often than the commit interval."""
    measured, run = line(folder, "disk", frames=1000, in_flight=4, pause_s=0.01, rows=64)
    shutil.rmtree(run)
    intervals = np.array(measured.latencies_s) / COMMIT_INTERVAL_S
    report.add("accept latency, p50", float(np.percentile(intervals, 50)), "commit intervals", at_most=2)
    report.add("accept latency, p99", float(np.percentile(intervals, 99)), "commit intervals", at_most=6)


def producers(report: Report, folder: Path, rounds: int, frames: int) -> None:
    """Four producers over one: each at a replica's pace, far below what the queue takes, and each as fast as it can.

    At full speed one producer, the scorer and the consumer may leave too little of the machine for three times as much.
    Then the limit is told: the disk, as a plain writer finds it, the processors, or the one that the consumer's process
    has: the queue is one process, and the learner's reading is in it here.
    """
    for name, pace in (("a frame each 40 ms", 0.04), ("full speed", 0.0)):
        rates, *found = zip(*(four_over_one(folder, frames, pace) for _ in range(rounds)), strict=True)
        limits = "the disk", "the processors", "the consumer's processor"
        shares = {limit: statistics.median(values) for limit, values in zip(limits, found, strict=True)}
        reached = [limit for limit, share in shares.items() if share >= 0.9] if not pace else []
        limit = f", limit: {' and '.join(reached)}" if reached else ""
        wanted = {} if reached else {"at_least": 3}
        report.add(f"four producers over one, {name}{limit}", statistics.median(rates), "x", **wanted)
        for part, share in shares.items():
            report.add(f"four producers, {name}: share of {part}", share, "")


def four_over_one(folder: Path, frames: int, pace_s: float) -> tuple[float, float, float, float]:
    """(rate of four producers over that of one, share of what the disk takes, of all processors, and of one of them
    by the consumer)."""
    one, one_run = line(folder, "disk", frames=frames // 2, pause_s=pace_s)
    shutil.rmtree(one_run)
    busy = busy_processor_s()
    four, four_run = line(folder, "disk", frames=frames // 2, producers=4, pause_s=pace_s)
    busy = busy_processor_s() - busy
    shutil.rmtree(four_run)
    rate = four.records / four.wall_s
    disk = rate * RECORD_BYTES / synced_bytes_per_s(folder)
    processors = busy / four.wall_s / (os.cpu_count() or 1)
    return rate / (one.records / one.wall_s), disk, processors, four.consumer_cpu_s / four.wall_s


def busy_processor_s() -> float:
    """Processor seconds that the whole machine has spent so far, the kernel's own threads among them."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice


def synced_bytes_per_s(folder: Path, size: int = 2**28) -> float:
    """What the disk takes from one writer that syncs every 4 MiB."""
    block = os.urandom(2**22)
    path = folder / "plain"
    started = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // len(block)):
            file.write(block)
            os.fdatasync(file.fileno())
    path.unlink()
    return size / (time.monotonic() - started)


def reading(report: Report, run: Path, rounds: int) -> None:
    """A reader that touches every byte against memcpy, and recovery, on a run that lies in the page cache."""
    paths = sorted(f"{COMPLETIONS_DIR}/{path.name}" for path in (run / COMPLETIONS_DIR).glob("*.arrow"))
    first = SegmentReader(run)
    frames = [frame for path in paths for frame in first.scan(path)]
    size = sum(frame.length for frame in frames)
    read = best_rate(size, rounds, lambda: [touch(first, frame) for frame in frames])
    fresh = best_rate(size, rounds, lambda: [SegmentReader(run).verify(path) for path in paths])
    source = np.ones(2**27, np.uint8)
    target = np.ones_like(source)
    copied = best_rate(source.nbytes, rounds, lambda: np.copyto(target, source))
    report.add("memcpy", copied / GIB, "GiB/s")
    report.add("reader that touches every byte over memcpy", read / copied, "", at_least=0.45)
    report.add("recovery scan, every checksum and every column", fresh / 1e9, "GB/s", at_least=1)
    opened = best_rate(1, rounds, lambda: ReplayQueue.open(run, settings("memory"), Order(), SystemClock()).close())
    report.add(f"opening the queue over {size / GIB:.2f} GiB of records", 1e3 / opened, "ms")


def best_rate(size: int, rounds: int, call: Callable[[], object]) -> float:
    """`size` over the median of the seconds that `call` takes, after one call to warm up."""
    call()
    times = []
    for _ in range(rounds):
        started = time.monotonic()
        call()
        times.append(time.monotonic() - started)
    return size / statistics.median(times)


def main() -> int:
    parser = argparse.ArgumentParser(description="the replay queue against ray.util.queue and the machine")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds; figures are medians")
    parser.add_argument("--frames", type=int, default=400, help="frames of 256 records in one run")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the index figures")
    parser.add_argument("--folder", type=Path, help="where the runs are written: the disk that is measured")
    options = parser.parse_args()
    # As the queue's actor does: see `streamrl.services.queue.actor`.
    gc.set_threshold(100_000, 50, 1000)
    report = Report("queue")
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-queue-") as name:
        folder = Path(name)
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        throughput(report, folder, options.rounds, options.frames)
        ray.shutdown()
        latency(report, folder)
        producers(report, folder, min(options.rounds, 3), options.frames)
        reading(report, line(folder, "disk", frames=200, retain="all")[1], options.rounds)
    index.measure(report, options.rows)
    report.add("processor time of this benchmark", processor_s(), "s")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
