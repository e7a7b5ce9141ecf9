"""The peer: `ray.util.queue.Queue` between one producer process and one consumer process, in memory.

A record is a dict of two numpy arrays of 1,280 elements (token ids, log-probs); the consumer looks at every byte.
"""

import time
from typing import Any

import numpy as np
import ray
from ray.util.queue import Queue

from queue_parts.wire import TOKENS

BATCH = 64


def record(random: np.random.Generator) -> dict[str, Any]:
    return {
        "token_ids": random.integers(0, 150_000, TOKENS, dtype=np.int32),
        "rollout_logprobs": -random.random(TOKENS, dtype=np.float32),
    }


@ray.remote(num_cpus=0)
def produce(queue: Queue, records: int, batch: int) -> None:
    some = [record(np.random.default_rng(seed)) for seed in range(BATCH)]
    for start in range(0, records, batch):
        if batch == 1:
            queue.put(some[start % BATCH])
        else:
            queue.put_nowait_batch(some[:batch])


def look(one: dict[str, Any]) -> int:
    return sum(int(np.bitwise_xor.reduce(values.view(np.uint64))) for values in one.values())


def records_per_s(records: int, batch: int) -> float:
    """Records through the queue in a second, one by one or in batches of `batch`."""
    queue = Queue(actor_options={"num_cpus": 0})
    ray.get(produce.remote(queue, batch, batch))
    take(queue, batch, batch)
    started = time.monotonic()
    done = produce.remote(queue, records, batch)
    take(queue, records, batch)
    wall_s = time.monotonic() - started
    ray.get(done)
    queue.shutdown()
    return records / wall_s


def take(queue: Queue, records: int, batch: int) -> None:
    taken = 0
    while taken < records:
        first = queue.get()
        look(first)
        taken += 1
        more = min(batch - 1, records - taken, queue.qsize() if batch > 1 else 0)
        for one in queue.get_nowait_batch(more) if more > 0 else []:
            look(one)
            taken += 1
