"""The learner on a CPU: packs against padding, log-probs with a large vocabulary, what it costs to keep figures of
single tokens. Needs no Ray. `bench_gpu.py` has the learner on a GPU.

A figure is a median of the rounds. What is compared takes turns within each round, and a ratio is the median of the
rounds' ratios, so that a busy machine weighs on both sides. Useful tokens are those of the rows, without padding.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from learner_steps import kept_tokens, logprobs
from learner_steps.models import (
    SMALL,
    make_branches,
    make_model,
    make_rows,
    packed_loss,
    packs_of,
    padded_loss,
    trimmed_loss,
)
from report import Report

from streamrl.learner.batch.prefix_tree import SHARED_FROM
from streamrl.learner.batch.rows import count_targets
from streamrl.learner.model.policy import PolicyModel

MICRO_BATCH = 8
PACK_TOKENS = 2048
WANTED = {"padded in arrival order": 2.4, "padded sorted by length": 1.25}


def packing(report: Report, rounds: int, rows_count: int) -> None:
    """Forward and backward of one batch: packed, and padded in micro-batches of 8 in two ways: as the library does it,
    and with nothing for padding but the decoder. Wanted is the ratio to the first; the second one says how much of it
    is the decoder's."""
    rows = make_rows(rows_count, SMALL.vocab_size)
    total, lengths = count_targets(rows), rows.lengths()
    policy, library = PolicyModel(make_model(SMALL)), make_model(SMALL)
    orders = {"in arrival order": np.arange(rows.num_rows), "sorted by length": np.argsort(lengths, kind="stable")}
    ways: dict[str, Callable[[], float]] = {"packed": lambda: packed_loss(policy, packs_of(rows, PACK_TOKENS), total)}
    for name, order in orders.items():
        ways[f"padded {name}"] = partial(padded_loss, library, rows, cut(order), total)
        ways[f"decoder alone padded {name}"] = partial(trimmed_loss, library, rows, cut(order), total)
    losses: dict[str, float] = {}
    times = [{name: seconds(way, losses, name) for name, way in ways.items()} for _ in range(rounds + 1)][1:]
    report.add("parameters", sum(p.numel() for p in policy.parameters()) / 1e6, "M")
    report.add("rows", rows.num_rows, "")
    report.add("tokens of the rows", int(lengths.sum()), "")
    for name, order in orders.items():
        places = sum(int(lengths[part].max()) * len(part) for part in cut(order))
        report.add(f"places over tokens, padded {name}", places / int(lengths.sum()), "x")
    for name in ways:
        report.add(f"useful tokens, {name}", lengths.sum() / statistics.median(t[name] for t in times), "tokens/s")
    for name in list(ways)[1:]:
        ratio = statistics.median(one[name] / one["packed"] for one in times)
        report.add(f"packed over {name}", ratio, "x", at_least=WANTED.get(name))
        report.add(f"loss, packed against {name}", abs(losses[name] - losses["packed"]), "", at_most=1e-5)


def branches(report: Report, rounds: int, length: int) -> None:
    """Forward and backward of eight branches of one episode: as a tree, and each branch whole. The tree can at most be
    faster by as much as it has fewer tokens: where nothing but the first half is shared, 4.5 halves of 8, or 1.78
    times; so the figure that is wanted is of one whose second half forks again and again. Log-probs of what is trained
    cost both the same."""
    for levels, name, wanted in ((1, "8 branches behind a shared half", None), (3, "8 branches that fork thrice", 1.8)):
        rows = make_branches(8, length, SMALL.vocab_size, levels=levels)
        policy, total, budget = PolicyModel(make_model(SMALL)), count_targets(rows), 8 * length
        packs = {
            form: packs_of(rows, budget, share_from) for form, share_from in (("tree", SHARED_FROM), ("flat", None))
        }
        ways = {form: partial(packed_loss, policy, of, total) for form, of in packs.items()}
        losses: dict[str, float] = {}
        times = [{form: seconds(way, losses, form) for form, way in ways.items()} for _ in range(rounds + 1)][1:]
        tokens = {form: sum(one.num_tokens for one in of) for form, of in packs.items()}
        report.add(f"{name}: tokens flat over tree", tokens["flat"] / tokens["tree"], "x")
        ratio = statistics.median(one["flat"] / one["tree"] for one in times)
        report.add(f"{name}: time flat over tree", ratio, "x", at_least=wanted)
        report.add(f"{name}: loss, tree against flat", abs(losses["tree"] - losses["flat"]), "", at_most=1e-5)


def cut(order: np.ndarray) -> list[np.ndarray]:
    return np.split(order, range(MICRO_BATCH, len(order), MICRO_BATCH))


def seconds(way: Callable[[], float], losses: dict[str, float], name: str) -> float:
    started = time.monotonic()
    losses[name] = way()
    return time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(description="the learner on one device")
    parser.add_argument("--rounds", type=int, default=3, help="figures are medians of so many")
    parser.add_argument("--rows", type=int, default=64, help="of the batch that is packed and padded")
    parser.add_argument("--branch-tokens", type=int, default=512, help="of a branch of the tree")
    parser.add_argument("--tokens", type=int, default=1024, help="whose log-probs are made")
    parser.add_argument("--hidden-size", type=int, default=1024, help="of the states that they are made of")
    options = parser.parse_args()
    torch.set_num_threads(2)
    report = Report("learner")
    packing(report, options.rounds, options.rows)
    branches(report, options.rounds, options.branch_tokens)
    logprobs.measure(report, options.rounds, options.tokens, options.hidden_size)
    kept_tokens.measure(report, options.rounds, options.rows)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
