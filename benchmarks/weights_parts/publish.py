"""Versions through shared memory: what the learner stands still for, what writing one takes, and how fast one replica
and four take one up.

Against memcpy, which is a copy of as many bytes into memory that is there already, by as many threads, in turns with
what it is compared with. A version takes the memory of one before it, as it does in a run from the third on.
"""

import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from report import Report

from streamrl.learner.model.sharding import ShardedPolicy
from streamrl.learner.parallel.process_group import open_group
from streamrl.types import Version
from streamrl.weights.manifest import encode
from streamrl.weights.shm.shm import ShmPublisher
from weights_parts.model import build
from weights_parts.replica import receive, send

RUN_ID = "bench-weights"
PROGRAMS = Path(__file__).parents[1]


def measure(report: Report, rounds: int) -> None:
    """All of it, for one model."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        group = open_group(0, 1, scratch / "meeting", device=torch.device("cpu"))
        stack.callback(group.close)
        policy = ShardedPolicy(build(), group, torch.float32)
        size = sum(shard.nbytes for shard in policy.shards.values())
        report.add("bytes of a version", size / 1e6, "MB")
        with ShmPublisher(RUN_ID, secrets.token_bytes(32), threads=torch.get_num_threads()) as publisher:
            copying(report, policy, publisher, rounds)
        taking_up(report, policy, rounds)


def copying(report: Report, policy: ShardedPolicy, publisher: ShmPublisher, rounds: int) -> None:
    """The snapshot and the publication over memcpy."""
    shards = {name: shard.detach() for name, shard in policy.shards.items()}
    target = {name: torch.empty_like(shard) for name, shard in shards.items()}

    def copy() -> None:
        for name, shard in shards.items():
            target[name].copy_(shard)

    def publish(step: int) -> None:
        publisher.publish(policy.gather(snapshot), Version(0, step))

    snapshot = policy.snapshot()
    copy()
    times: dict[str, list[float]] = {"memcpy": [], "snapshot": [], "publish": []}
    for step in range(rounds + 1):
        took = {
            "memcpy": seconds(copy),
            "snapshot": seconds(policy.snapshot),
            "publish": seconds(lambda step=step: publish(step)),
        }
        publisher.unlink(Version(0, step))
        if step:  # the first touches fresh memory
            for name, value in took.items():
                times[name].append(value)
    size = sum(shard.nbytes for shard in shards.values())
    report.add("memcpy", size / 1e9 / statistics.median(times["memcpy"]), "GB/s")
    report.add("snapshot, all that a step waits for", ratio(times, "snapshot", "memcpy"), "memcpys", at_most=1.3)
    report.add(
        "gather, check, digest and write over memcpy's rate", ratio(times, "memcpy", "publish"), "", at_least=0.5
    )


def taking_up(report: Report, policy: ShardedPolicy, rounds: int) -> None:
    """To the last replica's answer: signature, every digest, the engine's weights laid over it. From the hand-over of a
    version, and from the beginning of its publication, as a replica's deadline counts. One replica and four of them
    follow a publisher each, in turns."""
    weights = list(policy.gather(policy.snapshot()))
    times: dict[str, list[float]] = {}
    with ExitStack() as stack:
        groups = {name: stack.enter_context(following(name, number)) for name, number in (("one", 1), ("four", 4))}
        for step in range(rounds + 2):
            for name, (publisher, processes) in groups.items():
                started = time.monotonic()
                manifest = encode(publisher.publish(weights, Version(0, step)))
                handed_over = time.monotonic()
                take(processes, manifest)
                ended = time.monotonic()
                publisher.unlink(Version(0, step - 1))
                if step > 1:  # the first two take fresh memory
                    times.setdefault(name, []).append(ended - handed_over)
                    times.setdefault(f"published to {name}", []).append(ended - started)
    report.add("one replica takes a version", 1e3 * statistics.median(times["one"]), "ms")
    whole = ratio(times, "published to four", "published to one")
    report.add("four replicas take a version, from its publication", whole, "times one", at_most=1.5)
    taken = ratio(times, "four", "one")
    report.add("four replicas take a version, from its hand-over", taken, "times one", at_most=1.5)


@contextmanager
def following(name: str, number: int) -> "Iterator[tuple[ShmPublisher, list[subprocess.Popen[bytes]]]]":
    """A publisher, and so many replicas that follow it."""
    run_id, key = f"{RUN_ID}-{name}", secrets.token_bytes(32)
    with ShmPublisher(run_id, key, threads=torch.get_num_threads()) as publisher, replicas(run_id, key, number) as some:
        yield publisher, some


def take(processes: "list[subprocess.Popen[bytes]]", manifest: bytes) -> None:
    for process in processes:
        send(process.stdin, manifest)
    for process in processes:
        receive(process.stdout)


def seconds(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def ratio(times: dict[str, list[float]], upper: str, lower: str) -> float:
    return statistics.median(a / b for a, b in zip(times[upper], times[lower], strict=True))


@contextmanager
def replicas(run_id: str, key: bytes, number: int) -> "Iterator[list[subprocess.Popen[bytes]]]":
    """So many replica processes that stand ready."""
    words = [sys.executable, "-m", "weights_parts.replica", run_id]
    processes = [
        subprocess.Popen(words, cwd=PROGRAMS, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(number)
    ]
    try:
        for process in processes:
            send(process.stdin, key)
            receive(process.stdout)
        yield processes
    finally:
        for process in processes:
            process.communicate()
