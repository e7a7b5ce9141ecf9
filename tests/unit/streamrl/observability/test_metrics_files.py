"""`metrics.jsonl` and `summary.json`: whole lines, no NaN, and a resume that leaves no step twice."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.errors import DataError
from streamrl.observability.metrics import MetricsWriter, Summary, read_metrics, read_summary, write_summary
from streamrl.observability.plot import reward_curve, smoothed


def write_steps(path, *, steps: range) -> None:
    with MetricsWriter(path) as metrics:
        for step in steps:
            metrics.write({"step": step, "reward/mean": step / 10})


def test_what_is_written_is_read_back_in_order(tmp_path):
    write_steps(tmp_path / "metrics.jsonl", steps=range(3))
    write_steps(tmp_path / "metrics.jsonl", steps=range(3, 5))
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[3]["reward/mean"] == 0.3


def test_a_line_is_in_the_file_when_write_returns(tmp_path):
    with MetricsWriter(tmp_path / "metrics.jsonl") as metrics:
        metrics.write({"step": 1, "version": "0.1", "eval/score": None})
        assert (tmp_path / "metrics.jsonl").read_text() == '{"step":1,"version":"0.1","eval/score":null}\n'


def test_non_finite_numbers_are_null_and_counted(tmp_path):
    with MetricsWriter(tmp_path / "metrics.jsonl") as metrics:
        metrics.write({"step": 1, "loss/policy": float("nan"), "grad/norm": np.float32("inf"), "x": 1.0})
        metrics.write({"step": 2, "loss/policy": torch.tensor(float("-inf"))})
        metrics.write({"step": 3, "loss/policy": 0.5})
        assert metrics.nonfinite == 3
    text = (tmp_path / "metrics.jsonl").read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert lines[0] == {"step": 1, "loss/policy": None, "grad/norm": None, "x": 1.0, "metrics/nonfinite": 2}
    assert lines[1] == {"step": 2, "loss/policy": None, "metrics/nonfinite": 1}
    assert lines[2] == {"step": 3, "loss/policy": 0.5}


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(max_size=8).filter(lambda key: key != "step"), st.floats() | st.integers(-9, 9)))
def test_every_line_is_strict_json(tmp_path_factory, record):
    path = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    with MetricsWriter(path) as metrics:
        metrics.write({"step": 1, **record})
    json.loads(path.read_text(), parse_constant=pytest.fail)


def test_numpy_and_torch_scalars_are_numbers(tmp_path):
    with MetricsWriter(tmp_path / "m.jsonl") as metrics:
        metrics.write({"step": np.int64(4), "a": np.float64(0.5), "b": torch.tensor(2), "c": np.bool_(True)})
    assert read_metrics(tmp_path / "m.jsonl") == [{"step": 4, "a": 0.5, "b": 2, "c": True}]


@pytest.mark.parametrize("record", [{}, {"step": 1.5}, {"step": None}, {"step": True}, {"step": 1, "x": [1.0]}])
def test_a_line_without_a_step_or_with_a_list_is_refused(tmp_path, record):
    with MetricsWriter(tmp_path / "m.jsonl") as metrics, pytest.raises(DataError, match=r"metrics: "):
        metrics.write(record)
    assert read_metrics(tmp_path / "m.jsonl") == []


def test_a_torn_last_line_is_left_out_and_cut_at_the_next_start(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, steps=range(2))
    with path.open("ab") as file:
        file.write(b'{"step": 2, "rew')
    assert [line["step"] for line in read_metrics(path)] == [0, 1]
    write_steps(path, steps=range(2, 3))
    assert [line["step"] for line in read_metrics(path)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"step": ', "is no metrics line"),
        (b'{"step": 1, "note": "\xff"}', "is no metrics line"),
        (b'{"reward/mean": 1}', "has no integer 'step'"),
        (b"[2026-11-28] a program of somebody else's", "is no metrics line"),
        (b"", "is no metrics line"),
    ],
)
def test_a_torn_or_foreign_line_is_skipped_counted_and_told(tmp_path, line: bytes, why: str):
    path, told = tmp_path / "metrics.jsonl", []
    path.write_bytes(b'{"step": 1}\n' + line + b'\n{"step": 3}\n' + line + b"\n")
    assert [row["step"] for row in read_metrics(path, told.append)] == [1, 3]
    (text,) = told
    assert text.startswith(f"2 lines of metrics are skipped, the first: {path}:2 {why}")


def test_of_lines_that_can_all_be_read_nothing_is_told(tmp_path):
    write_steps(tmp_path / "m.jsonl", steps=range(2))
    read_metrics(tmp_path / "m.jsonl", pytest.fail)


def test_a_resume_goes_on_behind_a_line_that_cannot_be_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\nnot ours\n{"step": 2}\n{"step": 3}\n')
    told: list[str] = []
    with MetricsWriter(path) as metrics:
        metrics.truncate_after(2, told.append)
        metrics.write({"step": 3, "reward/mean": 1.0})
    assert [row["step"] for row in read_metrics(path, pytest.fail)] == [1, 2, 3]
    assert len(told) == 1


def test_a_resume_drops_the_steps_that_will_be_made_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write_steps(path, steps=range(6))
    with MetricsWriter(path) as metrics:
        metrics.truncate_after(3)
        metrics.write({"step": 4, "reward/mean": 9.0})
    lines = read_metrics(path)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[-1]["reward/mean"] == 9.0
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_run_without_metrics_has_no_lines(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


class Sink:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def write(self, record: Mapping[str, Any]) -> None:
        self.told.append(dict(record))

    def truncate_after(self, step: int) -> None:
        self.told.append(("after", step))

    def close(self) -> None:
        self.told.append("closed")


def test_a_sink_gets_every_line_as_it_is_written_and_how_far_a_resume_goes_back(tmp_path):
    sink = Sink()
    with MetricsWriter(tmp_path / "metrics.jsonl", sink) as metrics:
        for step in (6, 7, 8):
            metrics.write({"step": step, "version": "0.7", "loss/policy": float("nan") if step == 7 else 0.5})
        metrics.truncate_after(6)
    nan = {"step": 7, "version": "0.7", "loss/policy": None, "metrics/nonfinite": 1}
    assert sink.told[1] == nan
    assert sink.told[3:] == [("after", 6), "closed"]


def test_a_summary_is_read_back_and_has_the_promised_keys(tmp_path):
    path = tmp_path / "summary.json"
    assert read_summary(path) is None
    summary = Summary(
        eval_before=0.4,
        eval_after=0.93,
        wall_s=200.0,
        steps=600,
        rollouts_per_s=1500.0,
        seed=0,
        curve="c.png",
    )
    write_summary(path, summary)
    assert read_summary(path) == summary
    promised = {"eval_before", "eval_after", "wall_s", "steps", "rollouts_per_s", "seed", "export", "curve"}
    assert promised <= json.loads(path.read_text()).keys()


def test_a_damaged_summary_is_named(tmp_path):
    (tmp_path / "summary.json").write_text('{"steps": "many"}')
    with pytest.raises(DataError, match=r"summary\.json is no summary"):
        read_summary(tmp_path / "summary.json")


def test_the_curve_is_a_picture_of_reward_and_held_out_score(tmp_path):
    with MetricsWriter(tmp_path / "metrics.jsonl") as metrics:
        for step in range(100):
            metrics.write({"step": step, "reward/mean": step / 100 if step % 7 else float("nan")})
            if step % 25 == 0:
                metrics.write({"step": step, "eval/score": step / 100})
    reward_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png", title="run")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["curve.png", "metrics.jsonl"]


def test_a_curve_of_nothing_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nothing to draw"):
        reward_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png")


def test_the_smooth_line_is_the_mean_of_the_last_values():
    assert smoothed([1.0, 2.0, 3.0, 4.0], 2).tolist() == [1.0, 1.5, 2.5, 3.5]
    assert smoothed([1.0, 2.0], 5).tolist() == [1.0, 1.5]
    assert smoothed([1.0, 2.0], 1).tolist() == [1.0, 2.0]
