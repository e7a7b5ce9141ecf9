"""A run's figures over its steps: what a picture of few points keeps of many, and a file that is read as it grows."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrl.gateway.page.history import LEAST_POINTS, History, chosen
from streamrl.observability.metrics import MetricsWriter
from streamrl.services.inspect.metrics_tail import MetricsTail


def history_of(*rows: dict[str, Any]) -> History:
    history = History(newest=5)
    for row in rows:
        history.add(row)
    return history


@given(
    st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=300),
    st.integers(LEAST_POINTS, 64),
)
def test_of_many_points_the_ends_and_the_extremes_are_kept(values: list[float], points: int) -> None:
    array = np.array(values)
    places = chosen(array, points)
    assert len(places) <= points
    assert list(places) == sorted(set(places.tolist()))
    kept = array[places]
    assert (kept[0], kept[-1]) == (values[0], values[-1])
    assert (kept.min(), kept.max()) == (min(values), max(values))
    assert len(values) > points or len(places) == len(values)


def test_a_spike_of_one_step_among_ten_thousand_is_seen_wherever_it_is() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    spikes = sorted(draw.sample(range(10_000), 5))
    values = np.zeros(10_000)
    values[spikes] = [1, -1, 2, -2, 3]
    seen = set(chosen(values, 2000).tolist())
    assert set(spikes) <= seen


def test_each_figure_has_the_steps_that_it_is_of_and_no_others() -> None:
    history = history_of(
        {"step": 1, "reward/mean": 0.5, "time/step": 2.0, "version": "0.1"},
        {"step": 2, "reward/mean": None, "eval/score": 0.25, "time/step": 1.0, "flag": True},
        {"step": 5, "reward/mean": 1, "time/step": 0.5, "metrics/stands_for": 3},
        {"step": 5, "eval/score": 0.75},
    )
    told = history.reduced(100, ["reward/mean", "eval/score", "nobody/knows"])
    assert told == {
        "rows": 4,
        "clock": {"step": [1, 2, 5, 5], "time_s": [2.0, 3.0, 4.5, 4.5]},
        "figures": {
            "reward/mean": {"step": [1, 5], "value": [0.5, 1.0]},
            "eval/score": {"step": [2, 5], "value": [0.25, 0.75]},
        },
    }
    every = history.reduced(100)["figures"]
    assert set(every) == {"reward/mean", "eval/score", "time/step", "metrics/stands_for"}
    assert len(history.newest) == 4


def test_a_history_without_rows_is_empty() -> None:
    assert History(newest=5).reduced(100) == {"rows": 0, "clock": {"step": [], "time_s": []}, "figures": {}}


def test_the_components_of_the_reward_are_named_in_the_order_in_which_they_were_told() -> None:
    history = history_of(
        {"step": 1, "reward/mean": 0.5, "reward/std": 0.1, "reward/right/mean": 0.5, "reward/overlong_mean": 0.0},
        {"step": 2, "reward/a/b/mean": 0.25, "reward/right/mean": 1.0, "reward/none/mean": None},
    )
    assert history.components() == ["right", "a/b"]
    assert History(newest=5).components() == []


# ---- the file


def write(path: Path, *steps: int) -> None:
    with MetricsWriter(path) as metrics:
        for step in steps:
            metrics.write({"step": step, "reward/mean": step / 10})


def steps_of(tail: MetricsTail) -> list[int]:
    return tail.read().reduced(1000)["clock"]["step"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_a_file_is_read_as_it_grows_and_what_is_half_written_waits(path: Path) -> None:
    tail = MetricsTail(path, newest=2)
    assert steps_of(tail) == []
    write(path, 1, 2, 3)
    assert steps_of(tail) == [1, 2, 3]
    with path.open("a") as file:
        file.write('{"step": 4, "rew')
    assert steps_of(tail) == [1, 2, 3]
    with path.open("a") as file:
        file.write('ard/mean": 0.4}\n')
    assert steps_of(tail) == [1, 2, 3, 4]
    assert [row["step"] for row in tail.read().newest] == [3, 4]
    tail.close()


def test_a_line_is_read_once(path: Path) -> None:
    write(path, 1, 2)
    tail = MetricsTail(path, newest=2)
    assert steps_of(tail) == [1, 2]
    # In place, which no writer does: whoever looked again would stumble over it.
    with path.open("r+b") as file:
        file.write(b"x")
    assert steps_of(tail) == [1, 2]
    tail.close()


def test_a_file_that_took_its_place_is_read_from_its_begin(path: Path) -> None:
    write(path, *range(1, 50))
    tail = MetricsTail(path, newest=2)
    assert len(steps_of(tail)) == 49
    with MetricsWriter(path) as metrics:
        metrics.truncate_after(20)  # a resume
        for step in range(21, 80):
            metrics.write({"step": step, "reward/mean": 0.0})
    assert steps_of(tail) == list(range(1, 80))
    # Twice in a row: the first file's inode is free again then, unless somebody has it open.
    for _ in range(2):
        with MetricsWriter(path) as metrics:
            metrics.truncate_after(30)
            write(path, *range(31, 100))
    assert steps_of(tail) == list(range(1, 100))
    os.truncate(path, 0)
    assert steps_of(tail) == []
    tail.close()


def test_a_damaged_line_is_passed_over_and_counted_once(path: Path) -> None:
    path.write_text('{"step": 1}\n{"step": "two"}\n{"step": 3}\n')
    tail = MetricsTail(path, newest=9)
    for _ in range(2):
        assert steps_of(tail) == [1, 3]
        assert tail.skipped == 1
        assert tail.first_skipped == f"{path}:2 has no integer 'step'"
    with path.open("a") as file:
        file.write('torn\n{"step": 4}\n')
    assert steps_of(tail) == [1, 3, 4]
    assert tail.skipped == 2
    tail.close()
