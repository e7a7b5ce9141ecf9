"""The time ledger is closed, and the trace of many components becomes one picture."""

import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrl.clock import SystemClock, VirtualClock
from streamrl.observability.chrome_trace import merge_traces
from streamrl.observability.timeline import StepTimer, TraceWriter

# A step as a tree: seconds spent, then phases inside, each (name, tree).
TREES = st.recursive(
    st.tuples(st.integers(0, 10**9), st.just(())),
    lambda tree: st.tuples(
        st.integers(0, 10**9), st.lists(st.tuples(st.sampled_from("abc"), tree), max_size=3).map(tuple)
    ),
    max_leaves=8,
)


def walk(timer: StepTimer, clock: VirtualClock, tree) -> None:
    own_ns, inner = tree
    clock.advance(own_ns / 1e9)
    for name, below in inner:
        with timer.phase(name):
            walk(timer, clock, below)


def own_times(tree, name: str = "other") -> dict[str, int]:
    total = {name: tree[0]}
    for inner, below in tree[1]:
        for key, ns in own_times(below, inner).items():
            total[key] = total.get(key, 0) + ns
    return total


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@settings(max_examples=100, deadline=None)
@given(trees=st.lists(TREES, min_size=1, max_size=4))
def test_invariant_11_the_ledger_of_a_step_sums_to_its_wall_clock(trees):
    clock = VirtualClock()
    timer = StepTimer(clock)
    wall = 0
    for tree in trees:
        walk(timer, clock, tree)
        ledger = timer.finish()
        step = ns(ledger.pop("time/step"))
        assert sum(ns(value) for value in ledger.values()) == step
        wall += step
        for name, expected in own_times(tree).items():
            # The clock adds floats: it may be off by a nanosecond at each reading, the ledger is not.
            assert abs(ns(ledger[f"time/{name}"]) - expected) <= 100
    assert wall == ns(clock.now())


def test_a_timer_tells_the_innermost_phase_and_that_it_gets_on() -> None:
    timer = StepTimer(VirtualClock())
    assert timer.now_in == ("other", 0)
    with timer.phase("checkpoint"):
        with timer.phase("publish"):
            assert timer.now_in == ("publish", 2)
        assert timer.now_in == ("checkpoint", 2)
        with timer.phase("publish"):
            assert timer.now_in == ("publish", 3)
    assert timer.now_in == ("other", 3)


def test_invariant_11_holds_under_the_real_clock_too():
    timer = StepTimer(SystemClock(), phases=("wait",))
    for _ in range(50):
        with timer.phase("a"), timer.phase("b"):
            pass
        ledger = timer.finish()
        assert sum(ns(value) for name, value in ledger.items() if name != "time/step") == ns(ledger["time/step"])


class Ticking:
    """A clock on which every look takes a second."""

    def __init__(self) -> None:
        self.looks = 0

    def now(self) -> float:
        self.looks += 1
        return float(self.looks)


def test_invariant_11_no_time_is_lost_between_two_looks_at_the_clock():
    clock = Ticking()
    timer = StepTimer(clock)
    for _ in range(3):
        begun = clock.looks
        with timer.phase("a"), timer.phase("b"):
            pass
        assert timer.finish()["time/step"] == clock.looks - begun


def test_invariant_11_time_that_is_moved_to_another_phase_is_never_more_than_there_was():
    clock = VirtualClock()
    timer = StepTimer(clock)
    with timer.phase("a"):
        clock.advance(2)
    timer.move("a", "b", 0.5)
    timer.move("a", "c", 99.0)
    timer.move("none", "d", 1.0)
    assert timer.finish() == {
        "time/other": 0,
        "time/a": 0,
        "time/b": 0.5,
        "time/c": 1.5,
        "time/none": 0,
        "time/d": 0,
        "time/step": 2,
    }


def test_time_in_an_inner_phase_is_not_counted_twice():
    clock = VirtualClock()
    timer = StepTimer(clock, phases=("wait", "publish"))
    clock.advance(1)
    with timer.phase("outer"):
        clock.advance(2)
        with timer.phase("inner"):
            clock.advance(4)
        clock.advance(8)
    assert timer.finish() == {
        "time/wait": 0,
        "time/publish": 0,
        "time/other": 1,
        "time/outer": 10,
        "time/inner": 4,
        "time/step": 15,
    }
    clock.advance(0.5)
    assert timer.finish()["time/step"] == 0.5


def test_a_phase_that_raises_is_counted_and_closed():
    clock = VirtualClock()
    timer = StepTimer(clock)
    clock.advance(1)
    with pytest.raises(ValueError, match="go back"), timer.phase("a"), timer.phase("b"):
        clock.advance(-1)
    clock.advance(3)
    assert timer.finish() == {"time/other": 4, "time/a": 0, "time/b": 0, "time/step": 4}


def test_a_step_does_not_finish_inside_a_phase():
    timer = StepTimer(VirtualClock())
    with timer.phase("wait"), pytest.raises(ValueError, match=r"inside phase 'wait'"):
        timer.finish()


@pytest.mark.parametrize("name", ["other", "step"])
def test_the_ledgers_own_names_are_refused(name):
    with pytest.raises(ValueError, match=rf"time/{name}"), StepTimer(VirtualClock()).phase(name):
        pytest.fail("it was accepted")


def merged(tmp_path, *names: str) -> dict:
    count = merge_traces([tmp_path / name for name in names], tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert count == sum(event["ph"] == "X" for event in trace["traceEvents"])
    return trace


def spans(trace: dict) -> list[dict]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_spans_of_several_components_stand_on_one_time_line(tmp_path):
    with TraceWriter(tmp_path / "a.jsonl", "learner") as a, TraceWriter(tmp_path / "b.jsonl", "reward") as b:
        a.add("step", 1_000_000, 3_000_000, args={"step": 7})
        b.add("score", 2_000_000, 2_500_000, track="child 1")
    trace = merged(tmp_path, "a.jsonl", "b.jsonl")
    step, score = spans(trace)
    assert (step["name"], step["ts"], step["dur"], step["args"]) == ("step", 0.0, 2000.0, {"step": 7})
    # The two writers read the wall clock once each; on one machine they agree to far less than a millisecond.
    assert score["ts"] == pytest.approx(1000.0, abs=500)
    assert score["pid"] != step["pid"]
    names = {event["args"]["name"].split(" (")[0] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert names == {"learner", "main", "reward", "child 1"}
    assert trace["otherData"] == {"unreadable_lines": 0}


def test_a_step_timer_feeds_the_trace(tmp_path):
    clock = VirtualClock(start=5.0)
    with TraceWriter(tmp_path / "a.jsonl", "learner") as trace:
        timer = StepTimer(clock, trace=trace)
        with timer.phase("wait"):
            clock.advance(2)
        clock.advance(1)
        timer.finish()
    assert [(span["name"], span["ts"], span["dur"]) for span in spans(merged(tmp_path, "a.jsonl"))] == [
        ("wait", 0.0, 2e6),
        ("step", 0.0, 3e6),
    ]


def test_a_torn_line_is_skipped_and_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    with TraceWriter(path, "learner") as trace:
        trace.add("one", 1, 2)
    with path.open("ab") as file:
        file.write(b'["two",3,')
    assert merged(tmp_path, "a.jsonl")["otherData"] == {"unreadable_lines": 1}
    with TraceWriter(path, "learner") as trace:
        trace.add("three", 5, 6)
    again = merged(tmp_path, "a.jsonl")
    assert [span["name"] for span in spans(again)] == ["one", "three"]
    assert len({span["pid"] for span in spans(again)}) == 2
    assert again["otherData"] == {"unreadable_lines": 1}


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_trace_cut_anywhere_is_still_a_picture(tmp_path, cut):
    with TraceWriter(tmp_path / "a.jsonl", "learner") as trace:
        for start in range(5):
            trace.add("span", start, start + 1)
    content = (tmp_path / "a.jsonl").read_bytes()
    (tmp_path / "a.jsonl").write_bytes(content[:-cut])
    assert len(spans(merged(tmp_path, "a.jsonl"))) >= 1


def test_no_spans_make_an_empty_picture(tmp_path):
    TraceWriter(tmp_path / "a.jsonl", "learner").close()
    assert spans(merged(tmp_path, "a.jsonl")) == []


def test_spans_are_written_in_batches_and_flushed_on_demand(tmp_path):
    with TraceWriter(tmp_path / "a.jsonl", "learner") as trace:
        header = (tmp_path / "a.jsonl").read_bytes()
        with trace.span("quick", track="t", rows=3):
            pass
        assert (tmp_path / "a.jsonl").read_bytes() == header
        trace.flush()
        assert (tmp_path / "a.jsonl").read_bytes().endswith(b',"t",{"rows":3}]\n')
        for start in range(600):
            trace.add("span", start, start + 1)
        assert (tmp_path / "a.jsonl").read_bytes().count(b'"span"') == 512


def test_a_trace_does_not_grow_beyond_its_bound_and_says_what_is_missing(tmp_path):
    with TraceWriter(tmp_path / "a.jsonl", "learner", max_bytes=30_000) as trace:
        for start in range(10_000):
            trace.add("span", start, start + 1)
    assert (tmp_path / "a.jsonl").stat().st_size < 31_000
    assert trace.dropped > 8000
    names = [span["name"] for span in spans(merged(tmp_path, "a.jsonl"))]
    assert names[-1] == f"trace full: {trace.dropped} spans dropped"
    assert len(names) - 1 + trace.dropped == 10_000


def test_threads_that_share_a_writer_lose_no_span(tmp_path):
    def work(trace: TraceWriter, track: str) -> None:
        for start in range(2000):
            trace.add("span", start, start + 1, track)

    with TraceWriter(tmp_path / "a.jsonl", "rollout") as trace:
        threads = [threading.Thread(target=work, args=(trace, f"t{i}")) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(spans(merged(tmp_path, "a.jsonl"))) == 8000
