"""What tells of a run stays below its budget, and what is left out is said."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.learner.probe_learner import open_run

from streamrl.config.estimates.log_budget import log_shares
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.run import Config, ObserveConfig
from streamrl.observability.chrome_trace import merge_traces
from streamrl.observability.failure import FailureReport, first_cause
from streamrl.observability.logs import release
from streamrl.observability.metrics import STANDS_FOR, MetricsWriter, read_metrics
from streamrl.observability.timeline import TraceWriter
from streamrl.services.actors.observe import Observer
from streamrl.services.controller.books import RunBook
from streamrl.system.append_file import AppendFile

TRACE_GROWTH = 2.5
PHASES = ("wait", "read", "pack", "forward_backward", "optimizer", "publish", "commit", "step")


def config(*, log_bytes: int, replicas: int = 1, ranks: int = 1) -> Config:
    return Config(
        rollout=RolloutConfig(replicas=replicas),
        learner=LearnerConfig(num_workers=ranks),
        observe=ObserveConfig(log_bytes=log_bytes),
    )


@given(log_bytes=st.integers(2**20, 2**40), replicas=st.integers(1, 500), ranks=st.integers(1, 64))
def test_invariant_9_all_shares_together_are_within_the_budget(log_bytes: int, replicas: int, ranks: int) -> None:
    shares = log_shares(config(log_bytes=log_bytes, replicas=replicas, ranks=ranks))
    parts = 3 + replicas + ranks
    whole = shares.events + shares.metrics + shares.reports
    assert parts * (shares.log + (1 + TRACE_GROWTH) * shares.spans) + whole <= log_bytes


def test_the_trace_of_a_full_span_file_grows_by_no_more_than_it_is_counted_for(tmp_path: Path) -> None:
    path, out = tmp_path / "learner.jsonl", tmp_path / "trace.json"
    with TraceWriter(path, "learner", 2**18) as trace:
        now = 10**13
        while not trace.dropped:
            for name in PHASES:
                trace.add(name, now, now + 1_234_567)
                now += 1_234_567
    merge_traces([path], out)
    assert path.stat().st_size <= 2**18 + 300
    assert out.stat().st_size <= TRACE_GROWTH * path.stat().st_size


def test_invariant_9_a_parts_log_and_spans_stay_below_their_shares(tmp_path: Path) -> None:
    settings = config(log_bytes=10 * 2**20)
    run, shares = open_run(settings, tmp_path), log_shares(settings)
    observer = Observer(run, settings, "learner-0")
    for number in range(10_000):
        observer.log.info("a step was done", number=number)
        for _ in range(2):
            with observer.span("step"):
                pass
    observer.close()
    release()
    logs = sum(path.stat().st_size for path in run.logs_path.glob("learner-0.log*"))
    assert shares.log // 4 < logs <= shares.log
    # The header and the line that says how many were dropped are beside the share.
    assert shares.spans // 2 < (run.logs_path / "trace/learner-0.jsonl").stat().st_size <= shares.spans + 300


def test_invariant_9_events_are_turned_over_and_the_newest_are_all_there(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "events.jsonl", 1000)
    for number in range(500):
        file.append(json.dumps({"kind": "notice", "number": number}).encode() + b"\n")
    paths = [tmp_path / "events.jsonl.1", tmp_path / "events.jsonl"]
    assert sum(path.stat().st_size for path in paths) <= 1000
    numbers = [json.loads(line)["number"] for path in paths for line in path.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 500))
    assert len(numbers) > 15


def test_an_error_that_was_turned_over_with_its_events_is_still_the_first_cause(tmp_path: Path) -> None:
    event = {"level": "error", "event": "the disk broke", "component": "queue", "time_ns": 5}
    (tmp_path / "events.jsonl.1").write_text(json.dumps(event) + "\n")
    (tmp_path / "events.jsonl").write_text(json.dumps({**event, "event": "an echo", "time_ns": 9}) + "\n")
    found = first_cause(tmp_path)
    assert isinstance(found, FailureReport)
    assert found.cause == "the disk broke"


def line(step: int) -> dict[str, Any]:
    figures = {"time/step": 0.5, "time/wait": 0.25, "staleness/mean": 1.0, "staleness/max": 2, "version": f"0.{step}"}
    return {"step": step, **figures}


def test_invariant_9_metrics_stay_below_their_share_and_say_for_how_many_steps_a_line_stands(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, max_bytes=20_000) as metrics:
        for step in range(1, 2001):
            score = {"eval/score": 0.5, "eval/step": step} if step % 400 == 0 else {}
            metrics.write({**line(step), **score})
            assert path.stat().st_size <= 20_000
        assert metrics.num_thinned > 1000
    lines = read_metrics(path)
    steps = [one["step"] for one in lines]
    assert steps == sorted(steps)
    assert sum(one.get(STANDS_FOR, 1) for one in lines) == 2000
    assert [one["eval/step"] for one in lines if "eval/score" in one] == [400, 800, 1200, 1600, 2000]
    assert steps[-60:] == list(range(1941, 2001))
    assert steps[0] == 1


def test_a_full_disk_puts_the_thinning_off_and_loses_no_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path, max_bytes=2000) as metrics:
        for step in range(1, 15):
            metrics.write(line(step))
        (tmp_path / "metrics.jsonl.tmp").symlink_to("/dev/full")
        for step in range(15, 40):
            metrics.write(line(step))
        assert [one["step"] for one in read_metrics(path)] == list(range(1, 40))
        (tmp_path / "metrics.jsonl.tmp").unlink()
        metrics.write(line(40))
        assert metrics.num_thinned
    assert sum(one.get(STANDS_FOR, 1) for one in read_metrics(path)) == 40


async def test_figures_of_a_summary_are_the_same_after_a_resume_from_metrics_that_were_thinned(tmp_path: Path) -> None:
    settings = config(log_bytes=200_000)
    run = open_run(settings, tmp_path)
    result = {"step": 400, "two_version_rollouts": 0, "discards_by_reason": {}}
    book = RunBook(run, settings)
    for step in range(1, 401):
        book.report("step", {**line(step), "reward/mean": 0.5})
    whole = book.summary(result)
    _, events = await book.events.after(0)
    book.close()
    told = [event["text"] for event in events if event["kind"] == "notice"]
    assert told == [
        "metrics.jsonl has reached its share of observe.log_bytes: of older steps every second line is left out"
    ]
    again = RunBook(run, settings)
    again.resume(400)
    resumed = again.summary(result)
    again.close()
    assert len(read_metrics(run.metrics_path)) < 400
    assert resumed["versions_published"] == whole["versions_published"] == 400
    for figure in ("staleness_mean", "learner_wait_share", "rollouts_per_s"):
        assert resumed[figure] == pytest.approx(whole[figure])
