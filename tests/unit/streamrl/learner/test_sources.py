"""The distance of engine and learner, apart for each that sampled: by its rows alone, and under its name."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.learner.probe_learner import GROUP_SIZE, GROUPS, built, finished, train

from streamrl.buffers.segments.places import writer_of
from streamrl.config.schema.learner import LearnerConfig, OptimizerConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.errors import DataError
from streamrl.learner.batch.token_facts import TokenFacts
from streamrl.learner.sources import SOURCES, Sources, by_source, source_means
from streamrl.services.rollout.completions import CompletionLog
from streamrl.types import FrameRef

BIAS = -3.0


def config(shares: int | None = None) -> Config:
    return Config(
        model=ModelConfig(preset="tiny-qwen3"),
        learner=LearnerConfig(steps=3, shares=shares, optimizer=OptimizerConfig(lr=1e-3, warmup_steps=0)),
    )


async def write_rows(folder: Path, biases: dict[str, float]) -> list[FrameRef]:
    """A frame of each replica, by its own log; row i of the lease is of replica i % their number, with its log-probs
    off by its bias."""
    rows = [finished(number, sample) for number in range(GROUPS) for sample in range(GROUP_SIZE)]
    written = []
    for first, (name, bias) in enumerate(biases.items()):
        log = CompletionLog(folder, config(), name, 0)
        mine = rows[first :: len(biases)]
        off = [
            replace(one, result=replace(one.result, logprobs=one.result.logprobs + np.float32(bias))) for one in mine
        ]
        written.append((await log.append(off))[0])
        log.close()
    return written


def figures(folder: Path, biases: dict[str, float], shares: int | None = None) -> dict[str, float]:
    """What the first step says of mismatch, but for the furthest token, and of the correction."""
    with built(config(shares), folder) as core:
        (metrics,) = train(core, asyncio.run(write_rows(folder, biases)), range(1))
    kinds = ("mismatch/", "correction/")
    return {key: value for key, value in metrics.items() if key.startswith(kinds) and "abs_max" not in key}


def mismatches(folder: Path, biases: dict[str, float], shares: int | None = None) -> dict[str, float]:
    """Of these, those of mismatch."""
    return {key: value for key, value in figures(folder, biases, shares).items() if key.startswith("mismatch/")}


def test_the_replica_that_is_off_is_told_by_its_name_and_the_others_are_as_before(tmp_path: Path) -> None:
    same = mismatches(tmp_path / "same", {"rollout-0": 0.0, "rollout-1": 0.0, "rollout-10": 0.0})
    off = mismatches(tmp_path / "off", {"rollout-0": 0.0, "rollout-1": BIAS, "rollout-10": 0.0})
    assert same.keys() == off.keys()
    assert same.keys() == {"mismatch/kl", *(f"mismatch/{name}/kl" for name in ("rollout-0", "rollout-1", "rollout-10"))}
    for name in ("rollout-0", "rollout-10"):
        assert off[f"mismatch/{name}/kl"] == same[f"mismatch/{name}/kl"]
    assert off["mismatch/rollout-1/kl"] > 3 * same["mismatch/rollout-1/kl"]


def test_the_figures_are_the_same_however_a_batch_is_cut(tmp_path: Path) -> None:
    biases = {"rollout-0": 0.0, "rollout-1": BIAS}
    whole, cut = mismatches(tmp_path / "whole", biases), mismatches(tmp_path / "cut", biases, shares=3)
    assert cut == pytest.approx(whole, rel=1e-5)


def test_the_mean_over_all_is_that_of_the_only_source(tmp_path: Path) -> None:
    only = mismatches(tmp_path / "only", {"rollout-3": 0.0})
    assert only["mismatch/rollout-3/kl"] == pytest.approx(only["mismatch/kl"], rel=1e-12)


def test_sources_beyond_those_that_are_counted_apart_are_in_no_figure_of_another() -> None:
    numbers = torch.tensor([0, SOURCES - 1, SOURCES, 0])
    means = source_means(by_source(numbers, torch.tensor([1.0, 5.0, 100.0, 2.0])), corrected=False)
    assert means == {"mismatch/source_0/kl": 1.5, f"mismatch/source_{SOURCES - 1}/kl": 5.0}


def test_names_are_given_to_figures_of_sources_alone() -> None:
    sources = Sources(["b", "a", "b"])
    given = {"mismatch/source_0/kl": 1.0, "mismatch/source_1/kl": 2.0, "mismatch/kl": 3.0}
    assert sources.named(given) == {"mismatch/a/kl": 1.0, "mismatch/b/kl": 2.0, "mismatch/kl": 3.0}
    given = {"correction/source_1/truncated": 0.5, "correction/lag_1/truncated": 0.25}
    assert sources.named(given) == {"correction/b/truncated": 0.5, "correction/lag_1/truncated": 0.25}


def test_weights_are_told_of_each_source_apart() -> None:
    facts = TokenFacts(
        lags=torch.zeros(4),
        weights=torch.tensor([1.0, 2.0, 0.0, 0.5]),
        truncated=torch.tensor([0.0, 1.0, 0.0, 0.0]),
        rejected=torch.tensor([0.0, 0.0, 1.0, 0.0]),
    )
    means = source_means(by_source(torch.tensor([0, 1, 1, 0]), torch.zeros(4), facts), corrected=True)
    told = {key.removeprefix("correction/source_"): value for key, value in means.items() if "correction" in key}
    assert told == {
        **{"0/weight_mean": 0.75, "0/truncated": 0.0, "0/rejected": 0.0},
        **{"1/weight_mean": 1.0, "1/truncated": 0.5, "1/rejected": 0.5},
    }


def test_the_weights_of_a_replica_that_is_off_are_its_own_in_the_figures_of_a_step(tmp_path: Path) -> None:
    same = figures(tmp_path / "same", {"rollout-0": 0.0, "rollout-1": 0.0})
    off = figures(tmp_path / "off", {"rollout-0": 0.0, "rollout-1": BIAS})
    assert off["correction/rollout-0/weight_mean"] == same["correction/rollout-0/weight_mean"]
    assert same["correction/rollout-1/truncated"] < 1.0
    assert off["correction/rollout-1/truncated"] == 1.0  # each of its tokens is likelier by far than it says
    for name in ("weight_mean", "truncated", "rejected"):
        parts = [off[f"correction/{replica}/{name}"] for replica in ("rollout-0", "rollout-1")]
        assert min(parts) <= off[f"correction/{name}"] <= max(parts)


@pytest.mark.parametrize(
    ("path", "writer"),
    [
        ("queue/completions/rollout-1-0-000003.arrow", "rollout-1"),
        ("nodes/0123456789ab/queue/completions/rollout-12-7-000000.arrow", "rollout-12"),
    ],
)
def test_a_path_of_a_segment_says_who_wrote_it(path: str, writer: str) -> None:
    assert writer_of(path) == writer


def test_a_path_of_something_else_is_refused() -> None:
    with pytest.raises(DataError, match=r"'queue/ledger/000001\.log' is no segment"):
        writer_of("queue/ledger/000001.log")
