"""The figures that answer a reader's first questions, each taken from a record: the head of the page, and the README's.

A benchmark that renames a figure makes this fail with the names that the record has.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from results_page.records import Record
from results_page.sections import section_of

Records = Mapping[str, Record]


@dataclass(frozen=True, slots=True)
class Highlight:
    """question: what is measured. answer: with its figures. record: where they are from."""

    question: str
    answer: str
    record: str

    @property
    def command(self) -> str:
        """Makes the record."""
        return section_of(self.record).command


def readme_lines(records: Records) -> Iterator[Highlight]:
    """What makes streamrl different: six lines, a figure in each."""
    learning, queue, weights = records["learning"], records["queue"], records["weights"]
    e2e, service, stream = records["e2e"], records["service"], records["async"]
    yield Highlight(
        "Asynchronous",
        f"under a heavy tail of lengths, 4 steps of staleness train {stream[OVER_SYNCHRONOUS.format(4)]:.1f}x the "
        f"rollouts a second of the run's own synchronous loop, and 8 steps {stream[OVER_SYNCHRONOUS.format(8)]:.1f}x",
        "async",
    )
    yield Highlight(
        "Old rows still teach",
        f"rows of up to 4 steps of staleness change the held-out score by {_change(learning, 'arithmetic', 4)} and "
        f"{_change(learning, 'chain_sum', 4)} on two tasks; plain PPO loses {_loss(learning, 'arithmetic', 4)} and "
        f"{_loss(learning, 'chain_sum', 4)}",
        "learning",
    )
    yield Highlight(
        "Fast",
        f"{e2e['ratio, median of rounds']:.1f}x the rollouts trained per second of TRL's `GRPOTrainer` with the same "
        f"model, prompts and batch; held-out score {e2e[BEST.format('streamrl')]:.2f} against "
        f"{e2e[BEST.format('TRL')]:.2f} after equal rollouts, each at the best of three rates",
        "e2e",
    )
    yield Highlight(
        "A durable queue",
        f"on disk it takes {queue['accept + consume, disk']:,.0f} records a second from acceptance to commit, "
        f"{queue['disk over memory']:.2f} of its level without a disk and "
        f"{queue['disk over ray.util.queue one by one']:.0f}x `ray.util.queue`",
        "queue",
    )
    yield Highlight(
        "Updates while generation goes on",
        f"generation stands still for {weights[STANDS_STILL]:.1f} % of the time between two weight updates, and the "
        f"learner "
        f"for {weights['snapshot, all that a step waits for']:.1f} memcpy of the weights",
        "weights",
    )
    yield Highlight(
        "In use while it trains",
        f"1,000 streamed completions at once end with {service['errors of 1000 streams at once, 3 rounds']:.0f} "
        f"errors, "
        f"the slowest after {service['slowest of them']:.1f} s, on the two cores that the run itself has",
        "service",
    )


BEST = "held-out score at the best rate, {}"
OVER_SYNCHRONOUS = "rollouts per second, staleness {} over 0"
STANDS_STILL = "quickstart: generation stands still, share of the time between two updates"


def page_lines(records: Records) -> Iterator[Highlight]:
    """The README's, and what a second look asks for."""
    yield from readme_lines(records)
    for lines in (_quickstart, _queue, _weights, _learner, _learning, _service, _page):
        yield from lines(records)


def _quickstart(records: Records) -> Iterator[Highlight]:
    for name, question in (("quickstart", "The quickstart"), ("ppo-quickstart", "The quickstart by PPO with a critic")):
        run = records[name]
        yield Highlight(
            question,
            f"held-out score {run['held-out score before']:.3f} -> {run['held-out score after']:.3f} in "
            f"{run['whole command']:.0f} s, {run['rollouts trained per second']:,.0f} rollouts trained per second, "
            f"{run['PSS of all processes, at most']:.1f} GiB",
            name,
        )


def _queue(records: Records) -> Iterator[Highlight]:
    queue = records["queue"]
    yield Highlight(
        "The queue against `ray.util.queue`",
        f"{queue['disk over ray.util.queue one by one']:.0f}x one by one, "
        f"{queue['disk over ray.util.queue in batches of 64']:.1f}x in batches of 64",
        "queue",
    )
    yield Highlight(
        "How long an acceptance takes",
        f"{queue['accept latency, p50']:.1f} commit intervals in the median, {queue['accept latency, p99']:.1f} at "
        f"the 99th "
        "percentile",
        "queue",
    )
    yield Highlight(
        "Processor time for a record",
        f"{queue['processor time of both sides for a record']:.0f} microseconds on both sides, "
        f"{queue['processor time of the scorer for a record']:.0f} for the scorer",
        "queue",
    )
    yield Highlight(
        "Four producers, a scorer and a consumer",
        f"{queue['four producers over one, a frame each 40 ms']:.1f}x one producer at a frame each 40 ms; "
        f"{queue['four producers over one, full speed, limit: the processors']:.1f}x at full speed, where the "
        f"processors "
        f"are the limit, at {queue['four producers, full speed: share of the disk']:.1f} of the disk",
        "queue",
    )
    million = "index of 1,000,000 rows"
    yield Highlight(
        "With 1,000,000 rows ready",
        f"lease and commit of 64 groups in {queue[f'{million}: lease and commit of 64 groups']:.1f} ms, "
        f"{queue[f'{million}: memory for a row']:.0f} bytes a row",
        "queue",
    )


def _weights(records: Records) -> Iterator[Highlight]:
    weights = records["weights"]
    yield Highlight(
        "A version through shared memory",
        f"gathered, checked, digested and written at {weights[GATHERED]:.2f} of memcpy's rate; one replica takes it in "
        f"{weights['one replica takes a version']:.0f} ms, four in "
        f"{weights['four replicas take a version, from its hand-over']:.2f}x that",
        "weights",
    )
    vllm = "vLLM with 32 requests: generation stands still for an update"
    yield Highlight(
        "An update of a vLLM server with 32 requests",
        f"generation stands still for {weights[vllm]:.0f} ms in the median, {weights[f'{vllm}, at most']:.0f} ms at "
        f"most",
        "weights",
    )
    yield Highlight(
        "A delta with 1 % of the elements changed",
        f"bfloat16: {weights['bfloat16, 1.0% changed: size']:.1f} % of the bytes, made at "
        f"{weights['bfloat16, 1.0% changed: encode']:.0f} GB/s of weights; float32: "
        f"{weights['float32, 1.0% changed: size']:.1f} %, {weights['float32, 1.0% changed: encode']:.0f} GB/s",
        "weights",
    )
    changed = "elements that a step changes"
    yield Highlight(
        "Elements that a step of the quickstart changes in bfloat16",
        f"{weights[f'quickstart in bfloat16 at 3e-4: {changed}']:.0f} % at a rate of 3e-4, where deltas do not pay; "
        f"{weights[f'quickstart in bfloat16 at 1e-6: {changed}']:.1f} % at 1e-6",
        "weights",
    )


GATHERED = "gather, check, digest and write over memcpy's rate"


def _learner(records: Records) -> Iterator[Highlight]:
    learner = records["learner"]
    yield Highlight(
        "Packed rows",
        f"{learner['packed over padded in arrival order']:.1f}x the useful tokens a second of padding in arrival "
        f"order, "
        f"{learner['packed over padded sorted by length']:.2f}x of rows sorted by length, with equal loss",
        "learner",
    )
    words = "log-probs of 1024 tokens, 151936 words, hidden 1024"
    yield Highlight(
        "Log-probs over 151,936 words and their gradients, by blocks",
        f"{learner[f'{words}: peak by blocks']:.0f} MB at the peak in place of "
        f"{learner[f'{words}: peak of all logits at once']:,.0f} MB, in "
        f"{learner[f'{words}: time by blocks over all at once']:.2f} of the time",
        "learner",
    )


def _learning(records: Records) -> Iterator[Highlight]:
    learning = records["learning"]
    yield Highlight(
        "Held-out score with rows of up to 8 steps of staleness, against none",
        f"{_change(learning, 'arithmetic', 8)} and {_change(learning, 'chain_sum', 8)} with the default correction; "
        f"plain PPO loses {_loss(learning, 'arithmetic', 8)} and {_loss(learning, 'chain_sum', 8)}",
        "learning",
    )
    learned = records["algorithms"].values(unit="reward", wanted=">= 0.2")
    yield Highlight(
        "Does every algorithm learn a small task?",
        f"{len(learned)} combinations: the mean reward rises by {min(learned):.2f} to {max(learned):.2f}, "
        f"{statistics.median(learned):.2f} in the median",
        "algorithms",
    )


def _service(records: Records) -> Iterator[Highlight]:
    service = records["service"]
    yield Highlight(
        "Requests while replicas come and go, 1 -> 8 -> 2",
        f"{service['errors while replicas come and go']:.0f} errors, 99th percentile of the time to the first bytes "
        f"{service['p99 to first bytes, 1 -> 8 -> 2 over at rest']:.1f}x that at rest",
        "service",
    )
    overhead = "p99 of an answer's overhead"
    yield Highlight(
        "A streamed completion at half of the rate that saturates Ray Serve: 99th percentile of its overhead",
        f"{1000 * service[f'{overhead}, the gateway']:.0f} ms against {1000 * service[f'{overhead}, Ray Serve']:.0f} "
        f"ms of "
        f"Ray Serve, {service['p99 overhead of the gateway over that of Ray Serve']:.2f}x",
        "service",
    )


def _page(records: Records) -> Iterator[Highlight]:
    page = records["page"]
    yield Highlight(
        "The page of a run with 10,000 steps",
        f"curves {page['10000 steps read for the first time: link to curves']:.1f} s after the link, 99 of 100 "
        f"frames within "
        f"{page['frames: 99 of 100 within']:.0f} ms, heap {page['heap']:.0f} MiB",
        "page",
    )


def _change(learning: Record, task: str, staleness: int, correction: str = "decoupled") -> str:
    """Of the held-out score against staleness 0, signed."""
    return f"{learning[f'{task}, staleness {staleness}, {correction}: score less that of staleness 0']:+.3f}"


def _loss(learning: Record, task: str, staleness: int) -> str:
    """Of plain PPO, unsigned."""
    return _change(learning, task, staleness, "plain").removeprefix("-")
